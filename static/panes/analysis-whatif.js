// What if, by budget: tokens a step and tokens/s of every smaller budget in the same contexts, the best one,
// and beside the estimate what was measured when a budget was run for real.

import { $, el, handle, token } from "../core/dom.js";
import { count, fixed, millis } from "../core/format.js";
import { setWhatif, store } from "../core/store.js";
import { measured, measuring, startMeasuring } from "../parts/measure.js";
import { chart, upright } from "./chart.js";

const slider = handle("whatif-run");
const best = handle("whatif-best");

let shown = null; // the what-if drawn last

/** The budget of the marker: where the reader put it, else the best, else the largest. */
const budgetOf = ({ points, best: winner }) =>
  Math.min(store.whatif ?? winner ?? Infinity, points.length - 1);

const line = (points, value, colour) => ({
  type: "scatter",
  mode: points.length > 64 ? "lines" : "lines+markers",
  name: "estimate",
  x: points.map((point) => point.budget),
  y: points.map(value),
  line: { color: token(colour), width: 2, shape: "hv" }, // a budget is a whole number: no slopes
  marker: { color: token("--surface"), size: 5, line: { color: token(colour), width: 1.5 } },
});

const real = (value) => {
  const runs = measured(store.run.id);
  return {
    type: "scatter",
    mode: "markers",
    name: "measured",
    x: runs.map((run) => run.budget),
    y: runs.map(value),
    marker: { symbol: "diamond", size: 10, color: token("--ink") },
  };
};

function drawCharts({ points, best: winner }, at) {
  const budget = { title: "budget, nodes", rangemode: "tozero" };
  const said = (what, value) =>
    `${what} by budget: ${points.map((point) => `${point.budget}: ${fixed(value(point), 2)}`).join(", ")}`;
  const emitted = (point) => point.emitted;
  const speed = (point) => point.tokens_per_second;
  chart($("#chart-emitted"), [line(points, emitted, "--accepted"), real((run) => run.tau)], {
    x: budget,
    y: { title: "tok/step", rangemode: "tozero" },
    words: said("committed tokens a step", emitted),
    legend: measured(store.run.id).length ? "bottom" : undefined,
    shapes: [upright(at)],
  });
  const top = winner === null ? null : points[winner];
  chart($("#chart-speed"), [line(points, speed, "--stage-verify"), real((run) => run.tokens_per_second)], {
    x: budget,
    y: { title: "tok/s", rangemode: "tozero" },
    words: said("tokens a second", speed),
    legend: measured(store.run.id).length ? "bottom" : undefined,
    shapes: [upright(at)],
    annotations: top
      ? [{ x: top.budget, y: speed(top), text: `<b>best ${top.budget}</b>`, yshift: 12, xanchor: "left" }]
      : [],
  });
}

const cells = (...values) => values.map((value) => el("td", { class: "r" }, String(value)));

function drawTables({ points, times }, at) {
  const rows = points.map((point) =>
    el(
      "tr",
      { data: { budget: point.budget }, class: point.budget === at ? "sel" : null },
      el("th", { scope: "row", class: "r" }, String(point.budget)),
      ...cells(
        fixed(point.emitted),
        fixed(point.accepted),
        point.bonus_unknown,
        fixed(point.tokens_per_second, 1),
      ),
    ),
  );
  $("tbody", handle("whatif-table")).replaceChildren(...rows);
  const timed = times.map((time) =>
    el(
      "tr",
      { data: { rows: time.rows } },
      el("td", {}, time.source ?? "none"),
      ...cells(time.rows, time.steps, millis(time.draft), millis(time.verify), millis(time.total)),
    ),
  );
  $("tbody", handle("times-table")).replaceChildren(...timed);
}

function note({ steps, left_out, auto, points, measured: budgets, best: winner }) {
  const parts = [
    `An estimate: the same ${count(steps, "context")} of this run, each tree cut to its first nodes; a run with another budget would meet other contexts.`,
  ];
  if (left_out)
    parts.push(`${count(left_out, "step")} drafted with fewer than ${points.length - 1} nodes left out.`);
  if (auto)
    parts.push(
      `${count(auto, "step")} chose the budget (auto): more nodes where more were promised, which flatters large budgets here.`,
    );
  if (winner !== null)
    parts.push(
      "A step is charged the mean time of the next row count that three steps or more of this run had: a staircase, no fitted line.",
    );
  else if (budgets.length)
    parts.push(
      `Only budget ${budgets.join(", ")} was measured in this run: smaller ones are charged its time, unless enough steps had fewer rows, so their tokens/s are the least to expect and no best can be named. Measure one to see.`,
    );
  return parts.join(" ");
}

function drawMeasure(at) {
  const button = handle("measure");
  const state = measuring(store.run.id);
  const other = store.model?.target?.name !== store.run.head.target.name;
  button.textContent = state.at ?? `Measure budget ${at}`;
  button.disabled = Boolean(state.at) || other || store.connection.state !== "open";
  button.title = other
    ? `This run's target is ${store.run.head.target.name}, which is not the model loaded now`
    : "Run the same prompt with the same settings and seed at this budget, and put the result beside the estimate";
  handle("measure-stop").hidden = !state.at;
  const wrong = handle("measure-error");
  wrong.hidden = !state.error;
  wrong.textContent = state.error ?? "";
}

/** @param {object} data an analysis */
export function drawWhatIf({ whatif }) {
  shown = whatif;
  const { points } = whatif;
  handle("whatif-note").textContent = points.length ? note(whatif) : "Every step of this range failed.";
  slider.disabled = best.disabled = points.length === 0;
  if (points.length === 0) return;
  const at = budgetOf(whatif);
  const [here, last] = [points[at], points.at(-1)];
  slider.max = points.length - 1;
  slider.value = at;
  slider.setAttribute("aria-valuetext", `${count(at, "node")}, ${fixed(here.emitted, 2)} tokens a step`);
  $("#whatif-run-budget").textContent = at;
  best.disabled = whatif.best === null;
  best.textContent = whatif.best === null ? "No best" : `Best: ${whatif.best}`;
  const speed = here.tokens_per_second === null ? "" : `, ${fixed(here.tokens_per_second, 1)} tok/s`;
  const runs = measured(store.run.id).filter((run) => run.budget === at);
  const real = runs.length
    ? `; measured ${fixed(runs.at(-1).tau, 2)} tok/step, ${fixed(runs.at(-1).tokens_per_second, 1)} tok/s`
    : "";
  handle("whatif-run-says").textContent =
    `${fixed(here.emitted, 2)} tok/step${speed} (${last.budget} nodes: ${fixed(last.emitted, 2)}, ${fixed(last.tokens_per_second, 1)})${real}`;
  drawMeasure(at);
  drawCharts(whatif, at);
  drawTables(whatif, at);
}

slider.addEventListener("input", () => setWhatif(Number(slider.value)));
best.addEventListener("click", () => setWhatif(shown.best));
handle("measure-stop").addEventListener("click", () => measuring(store.run.id).stop?.());
handle("measure").addEventListener("click", () => startMeasuring(store.run, budgetOf(shown)));
