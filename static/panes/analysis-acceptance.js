// Where acceptance comes from: depth and rank, depth, the rank of what was missed, and how far the drafter's
// probabilities can be believed.

import { $, handle, token } from "../core/dom.js";
import { fixed } from "../core/format.js";
import { touch } from "../core/schedule.js";
import { chart } from "./chart.js";

const WIDEST = 16; // ranks shown in the heatmap
const LABELLED = 200; // cells that still have room for a number

const heat = handle("heat");

function drawHeat(cells) {
  const what = heat.value;
  const width = Math.min(Math.max(0, ...cells.map((row) => row.length)), WIDEST);
  const ranks = [...Array(width).keys()];
  const at = (row, rank) => row[rank]?.[what] ?? null;
  const z = cells.map((row) => ranks.map((rank) => (row[rank]?.proposed ? at(row, rank) : null)));
  const rate = what === "conditional";
  const shown = (v) => (rate ? v.toFixed(2).replace(/^0/, "") : String(v));
  const trace = {
    type: "heatmap",
    x: ranks,
    y: cells.map((_, depth) => depth + 1),
    z,
    zmin: 0,
    ...(rate ? { zmax: 1 } : {}),
    xgap: 1,
    ygap: 1,
    colorscale: [
      [0, token("--sunken")],
      [1, token("--accepted")],
    ],
    showscale: false,
    hoverinfo: "skip",
  };
  const most = rate ? 1 : Math.max(1, ...z.flat());
  const numbers = z.flatMap((row, depth) => row.map((v, rank) => ({ v, x: rank, y: depth + 1 }))).filter(({ v }) => v !== null);
  const labels = {
    type: "scatter",
    mode: "text",
    x: numbers.map(({ x }) => x),
    y: numbers.map(({ y }) => y),
    text: numbers.map(({ v }) => shown(v)),
    textfont: { color: numbers.map(({ v }) => token(v > most / 2 ? "--accepted-ink" : "--ink-2")) },
    hoverinfo: "skip",
  };
  const traces = width * cells.length <= LABELLED ? [trace, labels] : [trace];
  const words = cells.map((row, depth) => `depth ${depth + 1}: ${ranks.map((rank) => fixed(at(row, rank), rate ? 2 : 0)).join(" ")}`);
  chart($("#chart-heat"), traces, {
    x: { title: "rank", dtick: 1, showgrid: false },
    y: { title: "depth", dtick: 1, autorange: "reversed", showgrid: false },
    words: `${heat.selectedOptions[0].textContent}, by rank; ${words.join("; ")}`,
  });
}

export function drawDepths(depths, host = $("#chart-depth")) {
  const x = depths.map((_, i) => i + 1);
  const curve = (name, key, colour, dash, symbol) => ({
    type: "scatter",
    mode: "lines+markers",
    name,
    x,
    y: depths.map((depth) => depth[key]),
    line: { color: token(colour), width: 2, dash },
    marker: { symbol, size: 7, color: token(colour) },
  });
  const words = depths.map(
    (d, i) => `depth ${i + 1}: ${fixed(d.unconditional, 2)} of all steps, ${fixed(d.conditional, 2)} of reached`,
  );
  chart(
    host,
    [
      curve("of reached", "conditional", "--ink-2", "dash", "circle-open"),
      curve("of all steps", "unconditional", "--accepted", "solid", "square"),
    ],
    { x: { title: "depth", dtick: 1 }, y: { title: "accepted", range: [0, 1.02] }, words: words.join("; "), legend: "top" },
  );
}

function drawRanks({ upto, counts, beyond }) {
  const names = upto.map((end, i) => (i === 0 || upto[i - 1] + 1 === end ? String(end) : `${upto[i - 1] + 1}–${end}`));
  const x = [...names, "beyond"];
  const y = [...counts, beyond];
  const colours = [...counts.map(() => token("--accepted")), token("--rejected")];
  chart(
    $("#chart-rank"),
    [
      {
        type: "bar",
        x,
        y,
        text: y.map(String),
        textposition: "outside",
        textangle: 0,
        cliponaxis: false,
        marker: { color: colours, pattern: { shape: [...counts.map(() => ""), "/"], fgcolor: token("--surface") } },
      },
    ],
    {
      x: { title: "rank among the drafter’s candidates, from 1", type: "category", showgrid: false },
      y: { title: "steps", rangemode: "tozero" },
      words: x.map((name, i) => `${name}: ${y[i]}`).join(", "),
    },
  );
}

/** Whether the next bin stands where this one's count would: with many tokens of little probability. */
const crowded = (bins, i) =>
  i + 1 < bins.length && bins[i + 1].draft - bins[i].draft < 0.07 && Math.abs(bins[i + 1].rate - bins[i].rate) < 0.08;

function drawCalibration(bins) {
  const full = bins.filter((bin) => bin.nodes > 0);
  const trace = {
    type: "scatter",
    mode: "markers+text",
    x: full.map((bin) => bin.draft),
    y: full.map((bin) => bin.rate),
    text: full.map((bin, i) => (crowded(full, i) ? "" : String(bin.nodes))),
    textposition: "middle right",
    textfont: { color: token("--ink-3") },
    marker: { size: 7, color: token("--stage-verify") },
    error_y: {
      type: "data",
      symmetric: false,
      array: full.map((bin) => bin.interval[1] - bin.rate),
      arrayminus: full.map((bin) => bin.rate - bin.interval[0]),
      color: token("--stage-verify"),
      thickness: 1.25,
      width: 3,
    },
  };
  const ideal = { type: "line", x0: 0, y0: 0, x1: 1, y1: 1, line: { color: token("--line-strong"), width: 1, dash: "dash" } };
  const words = full.map(
    (bin) => `${bin.low} to ${bin.high}: ${fixed(bin.rate, 2)} of ${bin.nodes}, ${bin.interval.map((end) => fixed(end, 2)).join(" to ")}`,
  );
  chart($("#chart-calibration"), [trace], {
    x: { title: "probability the drafter gave", range: [0, 1.06] },
    y: { title: "target agreed", range: [-0.02, 1.06] },
    words: words.join("; "),
    shapes: [ideal],
  });
}

/** Which of the two a mismatch asks for, in counts. */
function note({ ranks, steps }) {
  const mismatches = ranks.counts.reduce((sum, n) => sum + n, ranks.beyond);
  const near = ranks.upto.reduce((sum, end, i) => (end <= 8 ? sum + ranks.counts[i] : sum), 0);
  const parts = [`${mismatches} of ${steps} steps ended at a mismatch`];
  if (mismatches)
    parts.push(
      `: in ${near} the target’s token was among the drafter’s first 8, within reach of a larger budget; in ${ranks.beyond} it was beyond the first ${ranks.upto.at(-1)}, the drafter’s own miss`,
    );
  parts.push(
    `. ${ranks.undrafted} ended where nothing was drafted. Calibration counts every node whose parent the walk stood on, with 95 % intervals (Wilson) and, where there is room, the number of nodes; on the dashed line the drafter is right about itself.`,
  );
  return parts.join("");
}

/** @param {object} data an analysis */
export function drawAcceptance({ acceptance }) {
  handle("acceptance-note").textContent = note(acceptance);
  drawHeat(acceptance.cells);
  drawDepths(acceptance.depths);
  drawRanks(acceptance.ranks);
  drawCalibration(acceptance.calibration);
}

heat.addEventListener("change", () => touch("analysis"));
