// Runs side by side: a race on one prompt and seed, or any two stored runs, with linked scrubbers and a replay
// at the pace that was measured. The runs go on whether or not this view is open; it asks for what is new.

import { $, $$, handle, setText } from "../core/dom.js";
import { fetchLanes, fetchOutline, fetchRace } from "../core/api.js";
import { count, millis } from "../core/format.js";
import { Lane, horizon, moveTogether } from "../core/lanes.js";
import { onTouch, touch } from "../core/schedule.js";
import { goTo, setTab, store } from "../core/store.js";
import { LaneView, grid, markDifferences } from "./lane-view.js";
import { drawFigures } from "./lanes-table.js";

const NEWS = 300; // ms between two askings for steps
const FIGURES = 1500; // ms between two askings for figures, while a lane goes on

const still = matchMedia("(prefers-reduced-motion: reduce)");
const replay = handle("replay");

/** What is shown: {title, raceId, list, views, figures, playing, clock, asked}; null: nothing. */
let shown = null;
let open = () => {};
let wanted = null; // {run, step}: where to go once a run that was opened has come

const link = () => $('input[name="link"]:checked').value;
const over = () => shown.list.every((lane) => lane.over);

export const lanesShown = () => shown;

function fail(message) {
  const wrong = handle("lanes-error");
  wrong.hidden = !message;
  wrong.textContent = message ?? "";
}

function show(title, runs, raceId) {
  const list = runs.map((run) => new Lane(run));
  const here = { title, raceId, list, figures: null, playing: false, clock: 0, asked: -Infinity, frame: 0 };
  here.views = list.map(
    (lane, i) =>
      new LaneView(lane, i, {
        moved: (at) => moveTo(i, at),
        opened: () => openAt(lane),
      }),
  );
  shown = here;
  grid.replaceChildren(...here.views.map((view) => view.root));
  grid.style.setProperty("--lanes", list.length);
  fail(null);
  touch("lanes");
  return here;
}

/** Show a race, live or over; `live`: it has just been started, so its texts are played as they come. */
export async function openRace(raceId, live = false) {
  try {
    const race = await fetchRace(raceId);
    const runs = race.lanes.filter(Boolean);
    const here = show("Race", runs, raceId);
    here.gone = race.lanes.length - runs.length;
    if (live) play(0);
    await follow(here);
  } catch (fault) {
    fail(`The race could not be opened: ${fault.message}`);
  }
}

/** Lay two stored runs side by side. */
export async function compareRuns(...ids) {
  try {
    const { lanes } = await fetchLanes(ids);
    const here = show("Compare", lanes.map(({ run }) => run), null);
    await follow(here);
  } catch (fault) {
    fail(`The runs could not be compared: ${fault.message}`);
  }
}

/** Ask for what is new until every lane is over, or something else is shown. */
async function follow(here) {
  for (;;) {
    for (const lane of here.list.filter((one) => !one.over)) lane.add(await fetchOutline(lane.id, lane.length));
    if (shown !== here) return;
    const done = over();
    if (!here.playing) for (const lane of here.list) lane.at = lane.length;
    if (done || performance.now() - here.asked > FIGURES) await askFigures(here);
    if (shown !== here) return;
    if (here.list.some((lane) => lane.over && lane.run.state === "interrupted")) here.interrupted = true;
    touch("lanes");
    if (done) return;
    await new Promise((resolve) => setTimeout(resolve, NEWS));
  }
}

async function askFigures(here) {
  here.asked = performance.now();
  here.figures = await fetchLanes(here.list.map((lane) => lane.id));
  here.list.forEach((lane, i) => (lane.settings = here.figures.lanes[i].settings));
}

function moveTo(index, at) {
  pause();
  moveTogether(shown.list, index, at, link());
  touch("lanes");
}

/** Show a lane's run in the Step view, at the step its reader stands at. */
function openAt(lane) {
  wanted = { run: lane.id, step: Math.max(lane.at - 1, 0) };
  setTab("step");
  open(lane.id);
  arrive();
}

function arrive() {
  if (!wanted || store.run?.id !== wanted.run || store.run.newest < wanted.step) return;
  const { step } = wanted;
  wanted = null;
  goTo(step);
}

// ---- the replay ----

function pause() {
  if (shown) shown.playing = false;
}

/** Run the clock from a moment of measured time; without motion everything stands there at once. */
function play(from) {
  const here = shown;
  here.playing = true;
  here.clock = from;
  for (const lane of here.list) lane.at = lane.atTime(from);
  let last = performance.now();
  const tick = (now) => {
    if (shown !== here || !here.playing) return;
    const limit = horizon(here.list);
    here.clock = still.matches ? limit : Math.min(here.clock + (now - last), limit);
    last = now;
    for (const lane of here.list) lane.at = lane.atTime(here.clock);
    if (over() && here.clock >= limit) here.playing = false;
    touch("lanes");
    requestAnimationFrame(tick);
  };
  requestAnimationFrame(tick);
}

// ---- drawing ----

function facts() {
  const { list, gone, interrupted } = shown;
  const going = list.filter((lane) => !lane.over).length;
  const words = [
    count(list.length, "lane"),
    going ? `${going} decoding` : "finished",
    gone ? `${count(gone, "lane")} deleted` : "",
    interrupted ? "the server was stopped before the end" : "",
  ];
  return words.filter(Boolean).join(" · ");
}

function drawLanes() {
  $("#lanes-body").hidden = !shown;
  if (!shown || store.tab !== "race") return;
  const { title, list, views, figures, playing } = shown;
  setText($("#h-lanes"), title);
  setText(handle("lanes-facts"), facts());
  handle("race-stop").hidden = !shown.raceId || over();
  setText($("span", replay), playing ? "Pause" : "Replay");
  replay.setAttribute("aria-pressed", String(playing));
  const clock = playing ? shown.clock : Math.max(...list.map((lane) => lane.time[lane.at]));
  setText(handle("lanes-clock"), `${millis(clock)} ms`);
  views.forEach((view) => view.draw(playing));
  grid.dataset.over = String(over());
  if (!figures) return;
  drawFigures(figures);
  markDifferences(views, figures.differences);
}

/** @param {(runId: string) => void} openRun shows a run in the Step view */
export function startLanes(openRun) {
  open = openRun;
  replay.addEventListener("click", () => {
    if (shown.playing) pause();
    else play(0);
    touch("lanes");
  });
  for (const input of $$('input[name="link"]')) {
    input.addEventListener("change", () => shown && moveTo(0, shown.list[0].at));
  }
  onTouch(["lanes", "tab"], drawLanes);
  onTouch(["run", "steps"], arrive);
}
