// The run in figures: how fast, how much per step, and where each step's time went. Sums of what the steps
// say; once the run has ended, its summary.

import { $, el, handle, num } from "../core/dom.js";
import { NONE, fixed, millis } from "../core/format.js";
import { onTouch } from "../core/schedule.js";
import { store } from "../core/store.js";

const box = handle("tiles");

const GROUPS = [
  ["draft", ["draft"]],
  ["verify", ["verify"]],
  ["sample", ["sample"]],
  ["rest", ["build", "encode", "commit", "other"]],
];
const LABELLED = 0.28; // share of the bar from which a stage has room for its name

function tile(name, value, unit) {
  return el(
    "div",
    { class: "tile", data: { term: name } },
    el("h3", {}, name),
    el(
      "p",
      {},
      el("b", { class: `num${value === NONE ? " none" : ""}` }, value === NONE ? "–" : value),
      " ",
      el("span", { class: "unit" }, unit),
    ),
  );
}

function figures(run) {
  const { sums, summary } = run;
  const steps = summary?.steps ?? sums.steps;
  const committed = summary?.committed ?? sums.committed;
  const accepted = summary?.accepted_drafts ?? sums.accepted;
  const speed =
    summary?.tokens_per_second ?? (sums.timed.total > 0 ? (sums.committed / sums.timed.total) * 1000 : null);
  const tau = summary ? summary.tau : steps ? committed / steps : null;
  return {
    speed,
    tau,
    accepted: steps ? accepted / steps : null,
    time: sums.steps ? sums.timed.total / sums.steps : null,
  };
}

function drawTiles() {
  const shown = store.run ? figures(store.run) : {};
  box.replaceChildren(
    tile("tokens/s", fixed(shown.speed, 1), "tok/s"),
    tile("tau", fixed(shown.tau, 2), "tok/step"),
    tile("accepted drafts", fixed(shown.accepted, 2), "per step"),
    tile("step time", fixed(shown.time, 1), "ms"),
  );
}

const sumOf = (timing, names) => names.reduce((sum, name) => sum + (timing[name] ?? 0), 0);

function stageRow(label, timing) {
  const total = timing.total;
  const parts = GROUPS.map(([name, stages]) => [name, sumOf(timing, stages)]);
  const bars = parts
    .filter(([, ms]) => ms > 0)
    .map(([name, ms]) =>
      el(
        "i",
        { class: name, style: `flex-grow:${ms / total}`, title: `${name} ${fixed(ms, 3)} ms` },
        ms / total > LABELLED && name !== "sample" && name !== "rest"
          ? el("span", {}, `${name} ${millis(ms)}`)
          : null,
      ),
    );
  const words = parts.map(([name, ms]) => `${name} ${fixed(ms, 1)} ms`).join(", ");
  return el(
    "div",
    { class: "stagerow" },
    el("span", {}, label),
    el("div", { class: "stack", role: "img", "aria-label": `${label}: ${words}` }, ...bars),
    num(millis(total)),
  );
}

function key(timing) {
  const items = GROUPS.map(([name, stages]) => {
    const ms = el("b", {}, timing ? millis(sumOf(timing, stages)) : NONE);
    return el("span", { class: "k", data: { term: name } }, el("i", { class: name }), `${name} `, ms);
  });
  return el("p", { class: "stagekey" }, ...items);
}

function drawStages() {
  const { run, view } = store;
  const timing = view?.step.timing_ms ?? null;
  const rows = [];
  if (timing) rows.push(stageRow(`step ${view.step.index}`, timing));
  if (run?.sums.timed.total > 0) {
    const mean = Object.fromEntries(
      Object.entries(run.sums.timed).map(([name, ms]) => [name, ms / run.sums.steps]),
    );
    rows.push(stageRow("mean", mean));
  }
  $("#stages").replaceChildren(
    ...(rows.length ? [...rows, key(timing)] : [el("p", { class: "empty" }, "No step has been timed yet.")]),
  );
  const tag = $("#measured");
  tag.hidden = !run || rows.length === 0;
  tag.textContent = run?.recorded ? "recorded" : "measured";
  tag.title = run?.recorded
    ? "figures of a stored or imported run"
    : "figures of a run that this page saw run";
}

onTouch(["steps", "run"], drawTiles);
onTouch(["view", "steps"], drawStages);
