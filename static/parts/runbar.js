// Run, pause, step, resume, stop; the pace; and what the run is at, in words.

import { $, handle, num, setText } from "../core/dom.js";
import { onTouch, touch } from "../core/schedule.js";
import { setError, store } from "../core/store.js";
import { allSettings, refuse, settleDown } from "./controls.js";

const buttons = Object.fromEntries(
  ["run", "pause", "resume", "step", "stop"].map((name) => [name, handle(name)]),
);
const prompt = handle("prompt");
const pace = { field: handle("pace"), slider: handle("pace-slider"), full: handle("pace-full") };
const TYPING = 250; // ms of rest before a typed pace counts

let send = () => false;

const open = () => store.connection.state === "open";
const paceValue = () => (pace.field.value === "" ? null : Number(pace.field.value));

function order(message) {
  if (send(message)) return true;
  setError({ message: "Not connected: the server did not get that. The page reconnects by itself." });
  return false;
}

/** Start a run; the one being watched goes on at the server. */
export function start(paused = false) {
  if (prompt.value.trim() === "") {
    refuse({ field: "prompt", message: "Type a prompt first." });
    prompt.focus();
    return;
  }
  setError(null);
  refuse({ field: "prompt", message: null });
  store.starting = order({
    type: "start",
    prompt: prompt.value,
    settings: allSettings(),
    pace: paceValue(),
    paused,
  });
  if (paused && store.starting) order({ type: "step" });
  touch("run");
}

/** Continue from a step of a run with the form's settings; it keeps the run's seed unless the form has one. */
export function startFork(run, step) {
  setError(null);
  store.starting = order({
    type: "start",
    prompt: run.head.prompt.text,
    settings: { seed: run.head.settings.seed, ...allSettings() },
    pace: paceValue(),
    fork: { run_id: run.id, step },
  });
  touch("run");
}

/** One step: of the run, or the first one of a new run. */
export function stepOnce() {
  if (buttons.step.disabled) return;
  if (store.run?.live && !store.run.foreign) order({ type: "step" });
  else start(true);
}

/** The space bar: whatever the first button says. */
export function mainAction() {
  const button = [buttons.pause, buttons.resume, buttons.run].find((b) => !b.hidden && !b.disabled);
  button?.click();
}

function drawButtons() {
  const { run, model } = store;
  const live = Boolean(run?.live);
  const ready = open() && model?.model === "ready";
  const paused = run?.state === "paused";
  buttons.pause.hidden = !live || paused;
  buttons.resume.hidden = !paused;
  buttons.run.classList.toggle("primary", !live);
  for (const name of ["pause", "resume"]) {
    buttons[name].classList.add("primary");
    buttons[name].disabled = !open();
  }
  buttons.run.disabled = !ready || Boolean(store.starting);
  buttons.run.title = live
    ? "Start a new run with these settings; this one goes on"
    : "Start a run (Ctrl Enter in the prompt)";
  buttons.step.disabled = !(live ? open() : ready);
  buttons.step.title = live ? "Take one step, then pause" : "Start a run, take one step and pause";
  buttons.stop.disabled = !live || !open();
  buttons.run.style.order = live ? 9 : 0;
}

const FINISHED = { stop: "stop token", length: "length reached", cancelled: "stopped", error: "failed" };

function words() {
  const { run, model, connection } = store;
  if (connection.state !== "open" && run?.live) return [["Reconnecting"], "the run goes on"];
  if (store.starting) return [["Starting…"]];
  if (!run) {
    if (!model) return [["Connecting…"]];
    if (model.model === "loading") return [[model.message || "Loading the model…"]];
    if (model.model === "failed") return [["No model"]];
    return [["Ready"]];
  }
  const last = run.newest;
  const after = last < 0 ? " before the first step" : [" after step ", num(last)];
  switch (run.state) {
    case "waiting":
      return [["Waiting"], run.place ? `place ${run.place}` : ""];
    case "prefill":
      return [["Reading the prompt"], run.progress == null ? "" : `${Math.round(100 * run.progress)} %`];
    case "running":
      return [["Running", " step ", num(last + 1)]];
    case "paused":
      return [
        ["Paused", ...[after].flat()],
        ["changes from ", num(last + 1)],
      ];
    case "interrupted":
      return [["Interrupted", ...[after].flat()], "server stopped"];
    default:
      return [["Finished", ...[after].flat()], FINISHED[run.summary?.finish_reason] ?? ""];
  }
}

function drawState() {
  const [[first, ...rest], aside = ""] = words();
  const strong = document.createElement("b");
  strong.textContent = first;
  $("#state").replaceChildren(strong, ...rest);
  $("#state-aside").replaceChildren(...[aside].flat());
  setText($("#state-said"), first); // heard once, not with every step
  drawProgress();
}

function drawProgress() {
  const { run, model } = store;
  const loading = !run && model?.model === "loading";
  const busy = loading || run?.state === "prefill";
  const share = loading ? model.progress : run?.progress;
  const bar = $("#progress");
  bar.hidden = !busy;
  bar.toggleAttribute("data-unknown", share == null);
  if (share == null) bar.removeAttribute("aria-valuenow");
  else bar.setAttribute("aria-valuenow", Math.round(100 * share));
  bar.firstElementChild.style.width = `${100 * (share ?? 0.3)}%`;
}

function drawPace() {
  const full = pace.field.value === "";
  pace.full.setAttribute("aria-pressed", String(full));
  pace.slider.classList.toggle("off", full);
}

function paceChanged() {
  refuse({ field: "pace", message: null });
  drawPace();
  if (store.run?.live) order({ type: "update", pace: paceValue() });
}

/** The server's pace, after another viewer changed it. */
function drawPaceInForce() {
  const { run } = store;
  if (
    !run?.live ||
    run.pace === undefined ||
    document.activeElement === pace.field ||
    pace.slider.matches(":active")
  )
    return;
  pace.field.value = run.pace ?? "";
  if (run.pace != null) pace.slider.value = run.pace;
  drawPace();
}

function connectPace() {
  pace.slider.addEventListener("input", () => {
    pace.field.value = pace.slider.value;
    drawPace();
    settleDown("pace", 60, paceChanged);
  });
  pace.field.addEventListener("input", () => {
    if (pace.field.value !== "") pace.slider.value = pace.field.value;
    settleDown("pace", TYPING, paceChanged);
  });
  pace.field.addEventListener("change", () => settleDown("pace", 0, paceChanged));
  pace.full.addEventListener("click", () => {
    pace.field.value = pace.field.value === "" ? pace.slider.value : "";
    settleDown("pace", 0, paceChanged);
  });
}

export function startRunbar(sender) {
  send = sender;
  buttons.run.addEventListener("click", () => start());
  buttons.step.addEventListener("click", stepOnce);
  for (const name of ["pause", "resume", "stop"])
    buttons[name].addEventListener("click", () => order({ type: name }));
  prompt.form.addEventListener("submit", (event) => event.preventDefault());
  prompt.addEventListener("input", () => {
    refuse({ field: "prompt", message: null });
    touch("form");
  });
  prompt.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && !buttons.run.disabled) start();
  });
  connectPace();
  drawPace();
  onTouch(["run", "model", "connection"], drawButtons);
  onTouch(["run", "model", "connection", "steps"], drawState);
  onTouch(["settings"], drawPaceInForce);
}
