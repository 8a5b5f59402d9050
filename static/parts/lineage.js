// Forks: continue from the step shown with the settings of the form, as a new run; what this run was forked
// from and what was forked from it; and where the two texts part.

import { $, $$, el, handle, num } from "../core/dom.js";
import { fetchLineage } from "../core/api.js";
import { count } from "../core/format.js";
import { onTouch, touch } from "../core/schedule.js";
import { store } from "../core/store.js";
import { visit } from "./address.js";
import { startFork } from "./runbar.js";

const AGAIN = 1000; // ms between two askings while a fork decodes and has not parted yet

const button = handle("fork");
const said = handle("lineage");
const text = handle("text");

let found = null; // of the run shown
let asked = null; // {run, state, at: performance.now()}
let timer = 0;

async function ask(run) {
  clearTimeout(timer);
  asked = { run, state: run.state, steps: run.newest, at: performance.now() };
  try {
    const lineage = await fetchLineage(run.id);
    if (store.run === run) found = lineage;
  } catch {
    return; // a run deleted meanwhile has no lineage to show
  }
  touch("lineage");
}

/** Ask for what may have changed: of a fork that has not parted, as it goes on. */
function refresh() {
  const { run } = store;
  if (!run) return;
  if (asked?.run !== run) {
    found = null;
    ask(run);
    return;
  }
  const open = run.head.forked_from && found?.index === null;
  if (!open || (asked.steps === run.newest && asked.state === run.state)) return;
  clearTimeout(timer);
  timer = setTimeout(() => store.run === run && ask(run), Math.max(0, asked.at + AGAIN - performance.now()));
}

const to = (words, runId, step, title) => {
  const link = el("button", { type: "button", class: "linklike", title }, words);
  link.addEventListener("click", () => visit(runId, step));
  return link;
};

function origin({ parent, step, index, compared, theirs }, fork) {
  if (!fork) return [];
  if (!parent) return [el("span", {}, "forked at step ", num(fork.step), " of a run that is not here")];
  const parts =
    index === null
      ? [compared ? `; the first ${count(compared, "token")} are the same` : ""]
      : ["; the texts part at ", to(`token ${index}`, parent.run_id, theirs.step, "Show the parent’s step there"), " after the fork"];
  return [el("span", {}, "forked at ", to(`step ${step}`, parent.run_id, step, `Show the run it was forked from: ${parent.prompt}`), ...parts)];
}

function children({ forks }) {
  if (forks.length === 0) return [];
  const links = forks.map(({ run_id, forked_from }) => to(`step ${forked_from.step}`, run_id, null, `Show the fork ${run_id}`));
  return [el("span", {}, forks.length === 1 ? "fork: " : "forks: ", ...links.flatMap((link, i) => (i ? [", ", link] : [link])))];
}

/** Mark the first token that the parent does not have. */
function mark() {
  for (const old of $$(".parts", text)) old.classList.remove("parts");
  const { mine } = found ?? {};
  const token = mine && $(`[data-group="${mine.step}"]`, text)?.children[mine.place];
  if (!token) return;
  token.classList.add("parts");
  token.title = "The first token that differs from the run this one was forked from";
}

function drawLineage() {
  const { run, at, pasted } = store;
  refresh();
  button.disabled = !run || at < 0 || Boolean(pasted) || Boolean(store.starting);
  button.lastElementChild.textContent = button.disabled ? "Fork" : `Fork at step ${at}`;
  const words = run && found?.run_id === run.id ? [...origin(found, run.head.forked_from), ...children(found)] : [];
  said.replaceChildren(...words);
  if (run && found?.run_id === run.id) said.dataset.index = found.index ?? "";
  else delete said.dataset.index;
  mark();
}

button.addEventListener("click", () => startFork(store.run, store.at));
onTouch(["run", "steps", "view", "lineage"], drawLineage);
