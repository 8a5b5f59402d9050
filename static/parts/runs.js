// Stored runs, to be opened again. Every run and every step is kept by the server as it happens.

import { $, el, handle, icon, num } from "../core/dom.js";
import { deleteRun, listRuns } from "../core/api.js";
import { count, fixed } from "../core/format.js";
import { store } from "../core/store.js";

const dialog = handle("runs-dialog");
const list = $("#runlist");

let watch = () => {};

const when = (stamp) =>
  new Date(stamp).toLocaleString(undefined, { dateStyle: "medium", timeStyle: "short" });

function factsOf(run) {
  const facts = [
    el("span", { class: `runstate ${run.state}` }, run.state),
    `${count(run.committed, "token")} in ${count(run.steps, "step")}`,
  ];
  if (run.steps) facts.push(`tau ${fixed(run.committed / run.steps, 2)}`);
  facts.push(run.method);
  if (run.lossy) facts.push("lossy");
  if (run.imported) facts.push("imported");
  facts.push(when(run.created_at));
  return el("span", { class: "runfacts" }, ...facts.flatMap((fact, i) => (i ? [" · ", fact] : [fact])));
}

function line(run) {
  const prompt = run.prompt.trim() === "" ? "(empty prompt)" : run.prompt;
  const open = el(
    "button",
    { type: "button", class: "runopen", "aria-current": run.run_id === store.run?.id ? "true" : null },
    el("bdi", { class: "runprompt" }, prompt),
    factsOf(run),
  );
  open.addEventListener("click", () => {
    watch(run.run_id);
    dialog.close();
  });
  const remove = el(
    "button",
    { type: "button", class: "icon", title: "Delete this run", "aria-label": `Delete the run “${prompt}”` },
    icon("cross"),
  );
  remove.addEventListener("click", async () => {
    await deleteRun(run.run_id).catch((fault) => say(fault.message));
    fill();
  });
  return el("li", { data: { run: run.run_id } }, open, remove);
}

const say = (text) => list.replaceChildren(el("li", { class: "empty" }, text));

async function fill() {
  try {
    const { runs } = await listRuns();
    $("#runs-facts").replaceChildren(num(runs.length), runs.length === 1 ? " run" : " runs");
    if (runs.length === 0) return say("No run is stored yet. Every run is kept here from its first step on.");
    list.replaceChildren(...runs.map(line));
  } catch (fault) {
    say(`The list could not be fetched: ${fault.message}.`);
  }
}

export function startRuns(watchRun) {
  watch = watchRun;
  handle("runs").addEventListener("click", () => {
    say("Fetching…");
    dialog.showModal();
    fill();
  });
}
