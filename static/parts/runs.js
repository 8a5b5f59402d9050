// The list of stored runs: searched and sorted by the server, page by page; tags and notes; delete and undo;
// many runs or the table as files. Every run and every step is kept by the server as it happens.

import { $, $$, el, handle } from "../core/dom.js";
import { deleteRun, editRun, listRuns, restoreRun, runsFileUrl, tableUrl } from "../core/api.js";
import { count } from "../core/format.js";
import { onTouch, touch } from "../core/schedule.js";
import { setList, store } from "../core/store.js";
import { save } from "./files.js";
import { editorOf, promptOf, rowOf } from "./run-row.js";

const dialog = handle("runs-dialog");
const list = $("#runlist");
const search = handle("runs-search");
const all = handle("runs-all");
const blank = $("#runs-blank");
const PAGE = 50;
const TYPING = 250; // ms of rest before what was typed is looked for
const UPWARD = ["prompt", "model", "method", "drafter"]; // texts begin at A, figures at the largest

export const FIRST_LIST = { search: "", sort: "date", order: "desc" };

let watch = () => {};
let rows = []; // the runs shown
let next = null; // where the following page begins
let asked = 0; // the newest question; answers to older ones are dropped
let shown = null; // the list that is fetched, as JSON
let timer = 0;
let editing = null; // run id
const chosen = new Set();
const deleted = []; // {run_id, prompt}, the newest last

const query = () => ({ ...store.list });

async function fill(more = false) {
  const question = ++asked;
  try {
    const page = await listRuns({ ...query(), limit: PAGE, ...(more ? { after: next } : {}) });
    if (question !== asked) return;
    rows = more ? [...rows, ...page.runs] : page.runs;
    next = page.next;
    say(rows.length ? null : nothing());
  } catch (fault) {
    if (question !== asked) return;
    if (!more) rows = [];
    say(`The list could not be fetched: ${fault.message}.`);
  }
  draw();
}

const nothing = () =>
  store.list?.search
    ? "No run has all of these words in its prompt, text, tags, notes or model."
    : "No run is stored yet. Every run is kept here from its first step on.";

function say(text) {
  blank.hidden = text === null;
  blank.textContent = text ?? "";
}

function draw() {
  const focused = document.activeElement?.closest("tr[data-run]")?.dataset.run;
  const act = document.activeElement?.dataset?.act;
  const there = new Set(rows.map((run) => run.run_id));
  for (const id of chosen) if (!there.has(id)) chosen.delete(id);
  list.replaceChildren(
    ...rows.flatMap((run) => {
      const row = rowOf({ run, chosen: chosen.has(run.run_id), current: run.run_id === store.run?.id });
      return run.run_id === editing ? [row, editorOf(run, (edit) => keep(run, edit), stopEditing)] : [row];
    }),
  );
  if (focused && act && !editing) $(`tr[data-run="${focused}"] [data-act="${act}"]`, list)?.focus();
  handle("runs-more").hidden = next === null;
  $("#runs-facts").textContent = count(rows.length, "run") + (next === null ? "" : " shown, there are more");
  for (const head of $$("th[data-sort]", dialog)) {
    const on = head.dataset.sort === store.list?.sort;
    if (on) head.setAttribute("aria-sort", store.list.order === "asc" ? "ascending" : "descending");
    else head.removeAttribute("aria-sort");
  }
  drawChoice();
}

function drawChoice() {
  const n = chosen.size;
  all.checked = n > 0 && n === rows.length;
  all.indeterminate = n > 0 && n < rows.length;
  for (const name of ["runs-export", "runs-delete"]) handle(name).disabled = n === 0;
  $("span", handle("runs-export")).textContent = n ? `Export ${n}` : "Export chosen";
  $("span", handle("runs-delete")).textContent = n ? `Delete ${n}` : "Delete chosen";
  for (const row of $$("tr[data-run]", list)) {
    const on = chosen.has(row.dataset.run);
    row.classList.toggle("chosen", on);
    $('[data-act="pick"]', row).checked = on;
  }
}

async function keep(run, edit) {
  const changed = await editRun(run.run_id, edit);
  rows = rows.map((one) => (one.run_id === run.run_id ? changed : one));
  stopEditing();
}

function stopEditing() {
  const id = editing;
  editing = null;
  draw();
  $(`tr[data-run="${id}"] [data-act="edit"]`, list)?.focus();
}

// ---- delete and undo ----

async function remove(ids) {
  const faults = [];
  for (const id of ids) {
    try {
      await deleteRun(id);
      const run = rows.find((one) => one.run_id === id);
      deleted.push({ run_id: id, prompt: run ? promptOf(run) : id });
      rows = rows.filter((one) => one.run_id !== id);
      chosen.delete(id);
    } catch (fault) {
      faults.push(fault.message);
    }
  }
  drawUndo(faults.join(" "));
  say(rows.length ? null : nothing());
  draw();
  if (!handle("runs-undo").hidden) handle("runs-undo").focus();
}

function drawUndo(fault = "") {
  const last = deleted.at(-1);
  const words = last ? `Deleted ${deleted.length > 1 ? `${deleted.length} runs, the last one ` : ""}“${last.prompt.slice(0, 60)}”.` : "";
  $("span", handle("runs-undo-bar")).textContent = [fault, words].filter(Boolean).join(" ");
  handle("runs-undo").hidden = !last;
}

async function undo() {
  const last = deleted.pop();
  let fault = "";
  try {
    await restoreRun(last.run_id);
  } catch (error) {
    fault = error.message;
  }
  drawUndo(fault);
  await fill();
}

// ---- what is pressed ----

const ACTS = {
  open(run) {
    setList(null);
    watch(run.run_id);
  },
  parent(run) {
    setList(null);
    watch(run.forked_from.run_id, run.forked_from.step);
  },
  pick(run, target) {
    if (target.checked) chosen.add(run.run_id);
    else chosen.delete(run.run_id);
    drawChoice();
  },
  tag: (_, target) => setList({ ...store.list, search: `tag:"${target.dataset.tag}"` }),
  edit(run) {
    editing = run.run_id;
    draw();
  },
  delete: (run) => remove([run.run_id]),
};

list.addEventListener("click", ({ target }) => {
  const part = target.closest("[data-act]");
  const run = rows.find((one) => one.run_id === target.closest("tr[data-run]")?.dataset.run);
  if (part && run) ACTS[part.dataset.act](run, part);
});
all.addEventListener("change", () => {
  chosen.clear();
  if (all.checked) for (const run of rows) chosen.add(run.run_id);
  drawChoice();
});
for (const head of $$("th[data-sort]", dialog)) {
  $("button", head).addEventListener("click", () => {
    const { sort } = head.dataset;
    const first = UPWARD.includes(sort) ? "asc" : "desc";
    const turned = store.list.order === "asc" ? "desc" : "asc";
    const order = store.list.sort === sort ? turned : first;
    setList({ search: search.value.trim(), sort, order });
  });
}
search.addEventListener("input", () => {
  clearTimeout(timer);
  timer = setTimeout(() => store.list && setList({ ...store.list, search: search.value.trim() }), TYPING);
});
search.addEventListener("keydown", (event) => event.key === "Enter" && event.preventDefault());
handle("runs-more").addEventListener("click", () => fill(true));
handle("runs-undo").addEventListener("click", undo);
handle("runs-delete").addEventListener("click", () => remove([...chosen]));
handle("runs-export").addEventListener("click", () => save(runsFileUrl([...chosen])));
handle("runs-csv").addEventListener("click", () =>
  save(tableUrl({ ...query(), ...(chosen.size ? { ids: [...chosen].join(",") } : {}) })),
);
dialog.addEventListener("close", () => store.list && setList(null));
handle("runs").addEventListener("click", () => setList({ ...FIRST_LIST }));

function drawList() {
  const key = store.list && JSON.stringify(store.list);
  if (key === shown) return;
  shown = key;
  if (!store.list) return dialog.open && dialog.close();
  if (document.activeElement !== search) search.value = store.list.search;
  if (!dialog.open) {
    editing = null;
    chosen.clear();
    rows = [];
    say("Fetching…");
    dialog.showModal();
  }
  draw();
  fill();
}

/** @param {(run_id: string, step?: number) => void} watchRun */
export function startRuns(watchRun) {
  watch = watchRun;
  onTouch(["list"], drawList);
  touch("list");
}
