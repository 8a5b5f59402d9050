// What a race is started with: two to four lanes, each a method and its tree; prompt, seed, sampling and length
// are the settings'. And which stored race, or which two stored runs, are shown.

import { $, $$, el, handle, icon } from "../core/dom.js";
import { listRaces, listRuns, startRace, stopRace } from "../core/api.js";
import { count } from "../core/format.js";
import { onTouch, touch } from "../core/schedule.js";
import { store } from "../core/store.js";
import { compareRuns, lanesShown, openRace } from "../panes/lanes.js";
import { allSettings } from "./controls.js";

const FEWEST = 2;
const MOST = 4;
const METHODS = [
  ["autoregressive", "autoregressive"],
  ["chain", "chain"],
  ["ddtree", "ddtree"],
];
const DRAFTERS = [
  ["", "the settings’"],
  ["hybrid", "hybrid"],
  ["dflash", "dflash"],
  ["ngram", "n-gram"],
];
const OWN = ["method", "drafter", "budget", "block_size"]; // a lane's own; the rest is the settings'

const list = handle("race-lanes");
const start = handle("race-start");
const wrong = handle("lanes-error");
const races = handle("race-list");
const sides = [handle("compare-left"), handle("compare-right")];

let starting = false;

function choice(name, label, options, value) {
  const select = el("select", { "aria-label": label, data: { name } }, ...options.map(([key, words]) => el("option", { value: key, selected: key === value }, words)));
  return select;
}

function number(name, label, value, props) {
  return el("label", {}, `${label} `, el("input", { type: "number", value, step: 1, ...props, data: { name } }));
}

function addLane({ method, budget = 15 }) {
  const lane = el(
    "li",
    {},
    el("b", { class: "num lanenumber" }),
    choice("method", "method", METHODS, method),
    choice("drafter", "drafter", DRAFTERS, ""),
    number("budget", "budget", budget, { min: 0, max: 1024 }),
    number("block_size", "block", "", { min: 1, max: 64, placeholder: "own" }),
    el("button", { type: "button", class: "icon", data: { name: "remove" } }, icon("cross")),
  );
  $('[data-name="remove"]', lane).addEventListener("click", () => {
    lane.remove();
    handle("race-add").focus();
    drawSetup();
  });
  lane.addEventListener("change", drawSetup);
  list.append(lane);
  drawSetup();
}

function drawSetup() {
  const lanes = $$("li", list);
  lanes.forEach((lane, i) => {
    lane.firstElementChild.textContent = i + 1;
    for (const field of $$("[data-name]", lane)) field.dataset.testid = `race-lane-${i + 1}-${field.dataset.name}`;
    for (const select of $$("select", lane)) select.setAttribute("aria-label", `${select.dataset.name} of lane ${i + 1}`);
    const plain = $('[data-name="method"]', lane).value === "autoregressive";
    for (const name of ["drafter", "budget", "block_size"]) $(`[data-name="${name}"]`, lane).disabled = plain;
    const remove = $('[data-name="remove"]', lane);
    remove.disabled = lanes.length <= FEWEST;
    remove.setAttribute("aria-label", `Remove lane ${i + 1}`);
  });
  handle("race-add").disabled = lanes.length >= MOST;
}

/** The settings of a lane: its own over the form's. */
function settingsOf(lane) {
  const settings = allSettings();
  for (const name of OWN) {
    const field = $(`[data-name="${name}"]`, lane);
    if (field.disabled) delete settings[name];
    else if (field.value !== "") settings[name] = field.type === "number" ? Number(field.value) : field.value;
    else if (name !== "drafter") delete settings[name];
  }
  return settings;
}

function say(message) {
  wrong.hidden = !message;
  wrong.textContent = message ?? "";
}

async function begin() {
  say(null);
  starting = true;
  touch("run");
  try {
    const { race_id } = await startRace(handle("prompt").value, $$("li", list).map(settingsOf));
    $("#race-setup").open = false;
    await fillRaces(race_id);
    openRace(race_id, true);
  } catch (fault) {
    say(`The race was not started: ${fault.message}`);
  }
  starting = false;
  touch("run");
}

const short = (text) => {
  const line = text.trim().replace(/\s+/g, " ");
  return line === "" ? "(empty prompt)" : line.length > 48 ? `${line.slice(0, 47)}…` : line;
};
const when = (stamp) => new Date(stamp).toLocaleString(undefined, { dateStyle: "medium", timeStyle: "short" });

async function fillRaces(chosen = lanesShown()?.raceId ?? "") {
  const { races: stored } = await listRaces();
  const options = stored.map(({ race_id, created_at, lanes }) => {
    const run = lanes.find(Boolean);
    return el("option", { value: race_id }, `${short(run.prompt)} · ${count(lanes.length, "lane")} · ${when(created_at)}`);
  });
  races.replaceChildren(el("option", { value: "" }, stored.length ? "choose…" : "none yet"), ...options);
  races.value = chosen;
}

async function fillRuns() {
  const { runs } = await listRuns();
  const options = () =>
    runs.map((run) =>
      el("option", { value: run.run_id }, `${short(run.prompt)} · ${run.method} · ${count(run.committed, "token")} · ${when(run.created_at)}`),
    );
  sides.forEach((side, i) => {
    const before = side.value || (i === 0 ? store.run?.id : "") || runs[i]?.run_id;
    side.replaceChildren(...options());
    side.value = before;
  });
  handle("compare").disabled = runs.length === 0;
}

const fill = () => Promise.all([fillRaces(), fillRuns()]).catch((fault) => say(`The lists could not be fetched: ${fault.message}`));

for (const lane of [{ method: "autoregressive" }, { method: "chain", budget: 7 }, { method: "ddtree" }]) addLane(lane);
handle("race-add").addEventListener("click", () => addLane({ method: "ddtree", budget: 31 }));
start.addEventListener("click", begin);
handle("race-stop").addEventListener("click", () =>
  stopRace(lanesShown().raceId).catch((fault) => say(`The race was not stopped: ${fault.message}`)),
);
races.addEventListener("change", () => {
  if (!races.value) return;
  $("#race-setup").open = false;
  openRace(races.value);
});
handle("compare").addEventListener("click", () => {
  $("#race-setup").open = false;
  races.value = "";
  compareRuns(...sides.map((side) => side.value));
});
onTouch(["tab"], () => store.tab === "race" && fill());
onTouch(["run", "model", "connection"], () => {
  start.disabled = starting || store.connection.state !== "open" || store.model?.model !== "ready";
});
