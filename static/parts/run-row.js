// A run in the list: its row, and the row below it where tags and notes are edited.

import { $, el, icon } from "../core/dom.js";
import { NONE, count, fixed } from "../core/format.js";

const COLUMNS = 12;

const when = (stamp) =>
  new Date(stamp).toLocaleString(undefined, { month: "short", day: "numeric", hour: "2-digit", minute: "2-digit", hourCycle: "h23" });

export const promptOf = (run) => (run.prompt.trim() === "" ? "(empty prompt)" : run.prompt);

const button = (name, label, act, glyph) =>
  el("button", { type: "button", class: glyph ? "icon" : "quiet", title: label, "aria-label": label, data: { act } }, glyph ? icon(glyph) : name);

/** What stands under the prompt: the state where it is not the usual one, the parent, tags, notes. */
function remarks(run) {
  const parts = [];
  if (run.state !== "finished") parts.push(el("span", { class: `runstate ${run.state}` }, run.state));
  if (run.lossy) parts.push(el("span", { class: "runstate interrupted" }, "lossy"));
  if (run.imported) parts.push(el("span", {}, "imported"));
  if (run.forked_from)
    parts.push(
      el("button", { type: "button", class: "linklike", data: { act: "parent" } }, `forked at step ${run.forked_from.step}`),
    );
  for (const tag of run.tags)
    parts.push(
      el("button", { type: "button", class: "chip", title: `Show the runs tagged ${tag}`, data: { act: "tag", tag } }, tag),
    );
  if (run.notes) parts.push(el("bdi", { class: "runnotes", title: run.notes }, run.notes.split("\n")[0]));
  return parts.length ? el("div", { class: "runremarks" }, ...parts) : null;
}

/** @param {{run: object, chosen: boolean, current: boolean}} one */
export function rowOf({ run, chosen, current }) {
  const prompt = promptOf(run);
  const pick = el("input", {
    type: "checkbox",
    class: "box",
    "aria-label": `Choose the run “${prompt}”`,
    checked: chosen,
    data: { act: "pick" },
  });
  const open = el(
    "button",
    { type: "button", class: "runopen", "aria-current": current ? "true" : null, data: { act: "open" } },
    el("bdi", { class: "runprompt" }, prompt),
  );
  const number = (text) => el("td", { class: "r" }, text);
  return el(
    "tr",
    { data: { run: run.run_id }, class: chosen ? "chosen" : null },
    el("td", { class: "pick" }, pick),
    el("td", { class: "when", title: run.created_at }, when(run.created_at)),
    el("th", { scope: "row" }, open, remarks(run)),
    el("td", { title: run.target }, run.target),
    el("td", {}, run.method === "autoregressive" ? "plain" : run.method),
    el("td", {}, run.drafter ?? NONE),
    number(String(run.budget)),
    number(String(run.temperature)),
    number(String(run.steps)),
    number(fixed(run.tau, 2)),
    number(fixed(run.tokens_per_second, 1)),
    el(
      "td",
      { class: "acts" },
      button("edit", `Edit tags and notes of “${prompt}”`, "edit"),
      button("delete", `Delete the run “${prompt}”`, "delete", "cross"),
    ),
  );
}

/** The form under a row; `save({tags, notes})` resolves when the server took it. */
export function editorOf(run, save, close) {
  const tags = el("input", { type: "text", class: "tags", value: run.tags.join(", "), data: { testid: "edit-tags" } });
  const notes = el("textarea", { rows: 3, data: { testid: "edit-notes" } });
  notes.value = run.notes;
  const wrong = el("p", { class: "wrong", role: "alert", hidden: true });
  const done = el("button", { type: "button", class: "primary", data: { testid: "edit-save" } }, "Save");
  const cancel = el("button", { type: "button", data: { testid: "edit-cancel" } }, "Cancel");
  const submit = async () => {
    try {
      const split = tags.value.split(",").map((tag) => tag.trim());
      await save({ tags: split.filter(Boolean), notes: notes.value });
    } catch (fault) {
      wrong.hidden = false;
      wrong.textContent = fault.message;
    }
  };
  done.addEventListener("click", submit);
  cancel.addEventListener("click", close);
  const row = el(
    "tr",
    { class: "editor" },
    el(
      "td",
      { colspan: COLUMNS },
      el("label", {}, el("span", {}, "tags, with commas between them"), tags),
      el("label", {}, el("span", {}, `notes on ${count(run.steps, "step")} of ${run.run_id}`), notes),
      wrong,
      el("p", { class: "btns" }, done, cancel),
    ),
  );
  row.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.target === tags || event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      submit();
    } else if (event.key === "Escape") {
      event.preventDefault();
      event.stopPropagation();
      close();
    }
  });
  queueMicrotask(() => $("input", row).focus());
  return row;
}
