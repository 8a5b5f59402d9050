// A bench's report: the plots of results.json, drawn again when the theme or a choice changes.

/* global Plotly */

const found = JSON.parse(document.getElementById("results").textContent);
const handle = (name) => document.querySelector(`[data-testid="${name}"]`);
const dark = matchMedia("(prefers-color-scheme: dark)");
const token = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// A lane keeps its colour, mark and line in every plot.
const COLOURS = ["--stage-verify", "--rejected", "--accepted", "--ngram", "--bonus-line", "--untried", "--ink"];
const MARKS = ["circle", "square", "diamond", "triangle-up", "cross", "star", "hexagon"];
const LINES = ["solid", "dash", "dot", "dashdot", "longdash"];
const STAGES = [
  ["draft", ["draft"], "--stage-draft"],
  ["verify", ["verify"], "--stage-verify"],
  ["sample", ["sample"], "--stage-sample"],
  ["build, encode, commit, other", ["build", "encode", "commit", "other"], "--stage-rest"],
];
const ROW = 34; // pixels of a lane or category

const place = (lane) => found.plan.lanes.indexOf(lane);
const colour = (lane) => token(COLOURS[place(lane) % COLOURS.length]);
const mark = (lane) => MARKS[place(lane) % MARKS.length];
const dash = (lane) => LINES[place(lane) % LINES.length];
const rate = (value) => (value == null ? "none" : value.toFixed(3));
const escaped = (text) => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;");

/** Lay traces out in a figure; one without a value says so instead. */
function draw(name, traces, layout) {
  const figure = handle(name);
  figure.hidden = traces.length === 0;
  if (figure.hidden) return;
  const axis = {
    gridcolor: token("--grid"), linecolor: token("--line-strong"), zerolinecolor: token("--line-strong"),
    automargin: true, fixedrange: true,
  };
  Plotly.react(
    figure.querySelector(".plot"),
    traces,
    {
      height: 320,
      margin: { l: 8, r: 16, t: 8, b: 40 },
      paper_bgcolor: "transparent",
      plot_bgcolor: "transparent",
      font: { family: token("--font-ui"), size: 12, color: token("--ink-2") },
      hoverlabel: { bgcolor: token("--surface"), bordercolor: token("--line-strong"), font: { color: token("--ink") } },
      legend: { orientation: "h", x: 0, y: -0.2, yanchor: "top" },
      ...layout,
      xaxis: { ...axis, ...layout.xaxis },
      yaxis: { ...axis, ...layout.yaxis },
    },
    { displayModeBar: false, responsive: true },
  );
}

/** Horizontal marks with their interval, the first lane on top; a line at `equal`. */
function intervals(name, entries, key, title, equal) {
  const shown = entries.filter((entry) => entry[key]);
  const around = (entry, side) => Math.abs((entry[key][side] ?? entry[key].mean) - entry[key].mean);
  draw(
    name,
    shown.map((entry) => ({
      type: "scatter", mode: "markers+text",
      x: [entry[key].mean], y: [escaped(entry.lane)],
      text: [entry[key].mean.toFixed(key === "rate" ? 1 : 2)], textposition: "top center", cliponaxis: false,
      marker: { color: colour(entry.lane), symbol: mark(entry.lane), size: 11 },
      error_x: {
        type: "data", symmetric: false, array: [around(entry, "high")], arrayminus: [around(entry, "low")],
        color: colour(entry.lane), thickness: 1.5, width: 5,
      },
      hovertemplate: `%{x:.2f}<extra>${escaped(entry.lane)}</extra>`,
    })),
    {
      height: 90 + 46 * shown.length, showlegend: false,
      xaxis: { title: { text: title }, rangemode: "tozero" }, yaxis: { autorange: "reversed" },
      shapes: equal == null ? [] : [{
        type: "line", x0: equal, x1: equal, y0: 0, y1: 1, yref: "paper", layer: "below",
        line: { color: token("--line-strong"), width: 1.5, dash: "dot" },
      }],
    },
  );
}

function categories(entries) {
  const names = Object.keys(entries[0]?.categories ?? {});
  draw(
    "tau",
    entries.map((entry) => ({
      type: "scatter", mode: "markers", name: escaped(entry.lane),
      x: names.map((name) => entry.categories[name].tau), y: names.map(escaped),
      marker: { color: colour(entry.lane), symbol: mark(entry.lane), size: 10 },
      hovertemplate: `%{y}: %{x:.3f}<extra>${escaped(entry.lane)}</extra>`,
    })),
    {
      height: 130 + ROW * names.length, showlegend: true,
      xaxis: { title: { text: "tau" } }, yaxis: { autorange: "reversed", type: "category" },
      legend: { orientation: "h", x: 0, y: 1, yanchor: "bottom" }, margin: { l: 8, r: 16, t: 40, b: 40 },
    },
  );
}

function depths(name, entries, key) {
  const drafted = entries.filter((entry) => entry.by_depth.length);
  draw(
    name,
    drafted.map((entry) => ({
      type: "scatter", mode: "lines+markers", name: escaped(entry.lane),
      x: entry.by_depth.map((_, i) => i + 1), y: entry.by_depth.map((depth) => depth[key]),
      customdata: entry.by_depth.map((depth) => [depth.accepted, depth.reached]),
      marker: { color: colour(entry.lane), symbol: mark(entry.lane), size: 8 },
      line: { color: colour(entry.lane), dash: dash(entry.lane) },
      hovertemplate: `depth %{x}: %{y:.3f}<br>%{customdata[0]} accepted, reached in %{customdata[1]} steps<extra>${escaped(entry.lane)}</extra>`,
    })),
    { showlegend: true, xaxis: { title: { text: "depth" }, dtick: 1 }, yaxis: { rangemode: "tozero" } },
  );
}

function heatmap(entry) {
  const rows = entry?.by_depth_and_rank ?? [];
  const width = Math.max(0, ...rows.map((row) => row.length));
  const cells = rows.map((row) => Array.from({ length: width }, (_, rank) => row[rank] ?? null));
  const note = (cell, depth, rank) =>
    cell
      ? `depth ${depth + 1}, rank ${rank}<br>proposed ${cell.proposed}, reached ${cell.reached}, accepted ${cell.accepted}<br>` +
        `of those reached ${rate(cell.conditional)}`
      : "";
  draw(
    "heatmap",
    rows.length
      ? [{
          type: "heatmap", xgap: 1, ygap: 1, zmin: 0,
          x: Array.from({ length: width }, (_, rank) => rank), y: rows.map((_, depth) => depth + 1),
          z: cells.map((row) => row.map((cell) => cell?.conditional ?? null)),
          text: cells.map((row, depth) => row.map((cell, rank) => note(cell, depth, rank))),
          hovertemplate: "%{text}<extra></extra>", hoverongaps: false,
          colorscale: [[0, token("--sunken")], [1, token("--accepted")]],
          colorbar: { thickness: 10, outlinewidth: 0 },
        }]
      : [],
    {
      xaxis: { title: { text: "rank" }, showgrid: false, zeroline: false, dtick: width > 24 ? 8 : 1 },
      yaxis: { title: { text: "depth" }, autorange: "reversed", showgrid: false, zeroline: false, dtick: 1 },
    },
  );
}

function stages(entries) {
  const timed = entries.filter((entry) => entry.stage_ms.total != null);
  const spent = (entry, names) => names.reduce((sum, name) => sum + (entry.stage_ms[name] ?? 0), 0);
  draw(
    "stages",
    timed.length
      ? STAGES.map(([title, names, fill]) => ({
          type: "bar", orientation: "h", name: title,
          x: timed.map((entry) => spent(entry, names)), y: timed.map((entry) => escaped(entry.lane)),
          marker: { color: token(fill), line: { color: token("--surface"), width: 1 } },
          hovertemplate: `%{x:.2f} ms ${title}<extra>%{y}</extra>`,
        }))
      : [],
    {
      height: 130 + ROW * timed.length, barmode: "stack", showlegend: true, bargap: 0.35,
      xaxis: { title: { text: "ms a step" } }, yaxis: { autorange: "reversed" },
      legend: { orientation: "h", x: 0, y: 1, yanchor: "bottom", traceorder: "normal" },
      margin: { l: 8, r: 16, t: 40, b: 40 },
    },
  );
}

function drawAll() {
  document.documentElement.dataset.theme = dark.matches ? "dark" : "light";
  const entries = found.entries.filter((entry) => String(entry.temperature) === handle("temperature").value);
  intervals("rate", entries, "rate", "tokens/s, prefill included");
  intervals("ratio", entries.filter((entry) => entry.lane !== "autoregressive"), "ratio", "times the autoregressive lane's tokens/s", 1);
  categories(entries.filter((entry) => entry.runs));
  depths("conditional", entries, "conditional");
  depths("unconditional", entries, "unconditional");
  heatmap(entries.find((entry) => entry.lane === handle("lane").value));
  stages(entries);
}

function offer(name, values) {
  const select = handle(name);
  for (const value of values) select.append(new Option(value, value));
  select.closest("label").hidden = values.length < 2;
  select.addEventListener("change", drawAll);
}

offer("temperature", found.plan.temperatures.map(String));
offer("lane", [...new Set(found.entries.filter((entry) => entry.by_depth_and_rank.length).map((entry) => entry.lane))]);
dark.addEventListener("change", drawAll);
drawAll();
