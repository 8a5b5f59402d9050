// The address names what is shown: #RUN&view=whatif&step=12&node=3&whatif=7&temperature=0.7. Whoever opens it
// sees the same. Another run, view or step is an entry of the browser's history; what moves by itself (a run
// that is followed, a slider) only replaces the newest one.

import { onTouch } from "../core/schedule.js";
import { goTo, selectNode, setList, setTab, setWhatif, store } from "../core/store.js";
import { nodeOf, telling } from "../core/step.js";
import { applySettings, formValues, onSetting } from "./controls.js";
import { FIRST_LIST } from "./runs.js";

const RESTING = 120; // ms between two entries written: browsers take 20 a second, and no more
const ONE_JUMP = 1500; // ms in which steps one after the other are one entry
const LONGEST = 1000; // characters of a setting (the system text)
const LIST = ["search", "sort", "order"];

const first = formValues();
const changed = new Map(); // settings that are not as the page began, by name

let watch = () => {};
let wanted = null; // what an address asks for and is not shown yet: {run, step, node, whatif,
// from: the run until then}
let written = { run: null, view: "step", step: null }; // of the newest entry
let jumped = -Infinity;
let wrote = -Infinity;
let timer = 0;

// ---- the address as an object ----

/** @returns {{run: string | null, view: string, step: ?number, node: ?(number | string), whatif: ?number,
 *   list: ?object, settings: object}} */
function read() {
  const [head, ...rest] = location.hash.slice(1).split("&");
  const bare = head !== "" && !head.includes("=");
  const given = new URLSearchParams((bare ? rest : [head, ...rest]).join("&"));
  const whole = (name) => (/^\d+$/.test(given.get(name) ?? "") ? Number(given.get(name)) : null);
  const view = given.get("view") ?? "step";
  const list = Object.fromEntries(LIST.map((name) => [name, given.get(name) ?? FIRST_LIST[name]]));
  const known = [...given].filter(([name]) => name in first);
  const values = known.map(([name, text]) => [name, value(name, text)]);
  return {
    run: bare ? decodeURIComponent(head) : null,
    view,
    step: whole("step"),
    node: given.get("node") === "bonus" ? "bonus" : whole("node"),
    whatif: whole("whatif"),
    list: view === "runs" ? list : null,
    settings: Object.fromEntries(values.filter(([, set]) => set !== undefined)),
  };
}

/** A setting as it stands in an address; undefined: it cannot be one. */
function value(name, text) {
  if (name === "chat") return text === "true";
  if (["seed", "system", "method", "drafter"].includes(name)) return text;
  if (name === "budget" && text === "auto") return text;
  return text.trim() === "" || Number.isNaN(Number(text)) ? undefined : Number(text);
}

function shown() {
  const { run, at, view, selected, follow } = store;
  const here = run && !follow && at >= 0 && !store.pasted;
  const own = here && view && selected !== null && selected !== telling(view);
  return {
    run: run?.id ?? null,
    view: store.list ? "runs" : store.tab,
    step: here ? at : null,
    node: own ? selected : null,
    whatif: store.whatif,
  };
}

function textOf(state) {
  const given = new URLSearchParams();
  if (state.view !== "step") given.set("view", state.view);
  if (store.list) {
    for (const name of LIST) if (store.list[name] !== FIRST_LIST[name]) given.set(name, store.list[name]);
  }
  for (const name of ["step", "node", "whatif"]) if (state[name] !== null) given.set(name, state[name]);
  for (const [name, set] of changed) {
    if (set !== null && String(set).length <= LONGEST) given.set(name, set);
  }
  const text = [state.run && encodeURIComponent(state.run), given.toString()].filter(Boolean).join("&");
  return text ? `#${text}` : "";
}

// ---- from the page to the address ----

/** Whether this is a place that the reader may want to come back to. */
function isPlace(state) {
  if (written.run === null && state.view === written.view) return false; // the first run of a new page
  if (state.run !== written.run || state.view !== written.view) return true;
  return state.step !== written.step && performance.now() - jumped > ONE_JUMP;
}

function write() {
  clearTimeout(timer);
  if (wanted) return;
  const rest = wrote + RESTING - performance.now();
  if (rest > 0) {
    timer = setTimeout(write, rest);
    return;
  }
  const state = shown();
  const text = textOf(state);
  if (text === location.hash) return;
  const place = isPlace(state);
  if (state.step !== written.step) jumped = performance.now();
  written = state;
  wrote = performance.now();
  history[place ? "pushState" : "replaceState"](null, "", text || location.pathname + location.search);
}

// ---- from the address to the page ----

function want(run, { step, node, whatif }) {
  wanted = { run, step, node, whatif, from: store.run?.id ?? null };
}

function open() {
  const asked = read();
  want(asked.run ?? store.run?.id ?? null, asked);
  if (asked.run && asked.run !== store.run?.id) watch(asked.run);
  setList(asked.list);
  if (!store.run?.live) {
    const back = [...changed.keys()].filter((name) => !(name in asked.settings));
    applySettings({ ...Object.fromEntries(back.map((name) => [name, first[name]])), ...asked.settings });
  }
  arrive();
  const known = document.querySelector(`[data-tab="${CSS.escape(asked.view)}"]`);
  if (asked.view !== store.tab && (known || asked.list)) setTab(asked.list ? "step" : asked.view);
}

/** Go on towards what the address asks for, as far as it has come. */
function arrive() {
  if (!wanted) return;
  const { run } = store;
  if (!wanted.run) return settle();
  if (run?.id !== wanted.run) {
    if ((run?.id ?? null) !== wanted.from) wanted = null; // the reader went elsewhere
    return;
  }
  if (wanted.step === null) {
    if (!store.follow) goTo(Infinity, true);
    return settle();
  }
  const whole = !run.live && run.ready >= run.head.steps && run.newest >= 0;
  if (run.ready <= wanted.step && !whole) return;
  if (store.at !== Math.min(wanted.step, run.newest) || store.follow) goTo(wanted.step);
  store.follow = false;
  if (!store.view) return;
  if (wanted.node !== null && nodeOf(store.view, wanted.node)) selectNode(wanted.node);
  settle();
}

function settle() {
  setWhatif(wanted.whatif);
  wanted = null;
  written = shown();
}

/** The run that the address names. */
export const linkedRun = () => read().run;

/** There is no such run: the address is of none. */
export function forgetRun() {
  wanted = null;
  write();
}

/** Watch a run from a step of it on; without one, its newest. */
export function visit(runId, step = null) {
  if (store.run?.id === runId) {
    if (step !== null) goTo(step);
    return;
  }
  want(runId, { step, node: null, whatif: null });
  watch(runId);
}

/** @param {(run_id: string) => void} watchRun asks the server for a run's frames */
export function startAddress(watchRun) {
  watch = watchRun;
  onSetting((name, set) => {
    if (set === first[name]) changed.delete(name);
    else changed.set(name, set);
  });
  const asked = read();
  if (asked.run) want(asked.run, asked);
  applySettings(asked.settings);
  if (asked.list) setList(asked.list);
  else if (document.querySelector(`[data-tab="${CSS.escape(asked.view)}"]`)) setTab(asked.view);
  written = { ...written, view: asked.view };
  addEventListener("popstate", open);
  onTouch(["run", "steps", "view", "node", "tab", "list", "whatif", "form"], () => {
    arrive();
    write();
  });
}
