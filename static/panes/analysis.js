// The range of steps that is looked at, and the analysis of it, fetched when it is shown: all arithmetic is the
// server's.

import { $, handle } from "../core/dom.js";
import { fetchAnalysis } from "../core/api.js";
import { count } from "../core/format.js";
import { onTouch, touch } from "../core/schedule.js";
import { store } from "../core/store.js";
import { drawAcceptance } from "./analysis-acceptance.js";
import { drawWhatIf } from "./analysis-whatif.js";

const REST = 2000; // ms between two askings while steps come

const pane = handle("analysis");
const ends = { from: handle("range-from"), to: handle("range-to") };
const TITLES = { whatif: "What if, by budget", acceptance: "Where acceptance comes from" };

let found = null; // {key, data}
let fault = null; // {key, message}
let asking = null;
let asked = 0;
let timer = 0;

const scope = () => $('input[name="scope"]:checked', pane).value;

/** [from, to] of the steps looked at, both included; null: there are none yet. */
function range() {
  const { run, at } = store;
  if (!run || run.newest < 0) return null;
  const inside = (value) => Math.min(Math.max(Math.trunc(Number(value)) || 0, 0), run.newest);
  if (scope() === "step") return [inside(at), inside(at)];
  if (scope() === "run") return [0, run.newest];
  return [inside(ends.from.value), inside(ends.to.value)].sort((a, b) => a - b);
}

const keyOf = (chosen) => `${store.run.id} ${chosen.join(" ")} ${store.run.state === "running" ? "" : store.run.newest}`;

async function ask(chosen, key) {
  asking = key;
  asked = performance.now();
  try {
    const data = await fetchAnalysis(store.run.id, ...chosen);
    found = { key, run: data.run_id, data };
    fault = null;
  } catch (error) {
    fault = { key, message: error.message };
  }
  asking = null;
  touch("analysis");
}

/** Ask for what is shown unless it is there or on its way; while steps come, not too often. */
function refresh() {
  const chosen = range();
  if (!TITLES[store.tab] || !chosen) return;
  const key = keyOf(chosen);
  if (asking || found?.key === key || fault?.key === key) return;
  clearTimeout(timer);
  const rest = asked + REST - performance.now();
  const busy = store.run.state === "running" && found?.run === store.run.id && rest > 0;
  if (busy) timer = setTimeout(refresh, rest);
  else ask(chosen, key);
}

function blank() {
  if (!range()) return "No steps yet. Run a prompt, or open a stored run: both views count its steps.";
  if (fault && !asking) return `The analysis could not be fetched: ${fault.message}`;
  if (found?.run !== store.run.id) return "Counting…";
  return null;
}

function drawAnalysis() {
  const { tab } = store;
  if (!TITLES[tab]) return;
  $("#h-analysis").textContent = TITLES[tab];
  refresh();
  const message = blank();
  $("#analysis-blank").hidden = message === null;
  $("#analysis-blank").textContent = message ?? "";
  $("#scope-ends").hidden = scope() !== "range";
  for (const field of Object.values(ends)) field.max = Math.max(store.run?.newest ?? 0, 0);
  for (const name of Object.keys(TITLES)) $(`#view-${name}`).hidden = message !== null || tab !== name;
  $("#analysis-facts").textContent = "";
  pane.setAttribute("aria-busy", String(Boolean(asking)));
  if (message !== null) return;
  const { data } = found;
  const part = data.first === data.last ? `step ${data.first}` : `steps ${data.first} to ${data.last}`;
  $("#analysis-facts").textContent = `${part}: ${count(data.acceptance.steps, "step")} counted`;
  pane.dataset.range = `${data.first}-${data.last}`;
  (tab === "whatif" ? drawWhatIf : drawAcceptance)(data);
}

pane.addEventListener("change", ({ target }) => {
  if (target.name === "scope" && target.value === "range") ends.to.value = Math.max(store.run?.newest ?? 0, 0);
  touch("analysis");
});
onTouch(["tab", "analysis", "steps", "view", "run", "theme", "size", "whatif"], drawAnalysis);
