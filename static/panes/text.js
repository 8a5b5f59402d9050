// The decoded text: a span per token, by index, with the step that committed it and its origin. The DOM is
// only ever appended to; spans of one step lie in a group, so that marking a step touches one element.

import { $, el, handle, num } from "../core/dom.js";
import { afterDrawing, onTouch } from "../core/schedule.js";
import { goTo, store } from "../core/store.js";

const box = handle("text");

let run = null;
let line = null; // the paragraph that grows
let groups = []; // the element of each step
let here = null;
let atEnd = true; // whether the reader stands at the end, and so wants to see what comes

/** A token's text as it is read: literal, a newline with a quiet mark. */
export function literal(text) {
  const pieces = text.split(/(\n)/);
  return pieces.map((piece) => (piece === "\n" ? el("i", { class: "sp" }, "↵\n") : piece));
}

function put(group, text) {
  if (!line) {
    line = el("p");
    box.append(line);
  }
  line.append(group);
  if (text.endsWith("\n")) line = null; // a new paragraph, so that a long text is laid out piece by piece
}

function begin() {
  run = store.run;
  groups = [];
  line = here = null;
  atEnd = true;
  box.replaceChildren();
  const { texts } = run.head.prompt;
  const group = el("span", { class: "step prompt" });
  texts.forEach((text) =>
    group.append(el("span", { class: "t prompt", data: { origin: "prompt" } }, ...literal(text))),
  );
  box.append(el("p", {}, group));
  line = box.lastElementChild;
}

function append(outline) {
  const group = el("span", { class: "step", data: { group: outline.index } });
  outline.texts.forEach((text, j) => {
    const origin = outline.origins[j];
    group.append(
      el("span", { class: `t ${origin}`, data: { step: outline.index, origin } }, ...literal(text)),
    );
  });
  groups.push(group);
  put(group, outline.texts.join(""));
}

function drawText() {
  if (!store.run)
    return box.replaceChildren(
      el(
        "p",
        { class: "empty" },
        "The text stands here, with a mark under every token that says where it came from; a click on one shows its step.",
      ),
    );
  if (store.run !== run) begin();
  while (groups.length < run.ready) append(run.outlines[groups.length]);
  mark();
  $("#textfacts").replaceChildren(num(run.sums.committed), ` of ${run.head.settings.max_new_tokens} tokens`);
}

function mark() {
  const group = store.pasted ? null : (groups[store.at] ?? null);
  const following = store.follow && atEnd;
  if (following) afterDrawing(() => (box.scrollTop = box.scrollHeight));
  if (group === here) return;
  here?.classList.remove("here");
  group?.classList.add("here");
  here = group;
  box.toggleAttribute("data-back", Boolean(group) && !store.follow);
  if (group && !following) afterDrawing(() => reveal(group));
}

function reveal(group) {
  const rect = group.getBoundingClientRect();
  const frame = box.getBoundingClientRect();
  if (rect.top < frame.top || rect.bottom > frame.bottom) {
    box.scrollTop += rect.top - frame.top - frame.height * 0.4;
  }
}

box.addEventListener("scroll", () => (atEnd = box.scrollHeight - box.scrollTop - box.clientHeight < 40));
box.addEventListener("click", (event) => {
  const step = event.target.closest("[data-step]")?.dataset.step;
  if (step !== undefined && getSelection().isCollapsed) goTo(Number(step));
});
onTouch(["steps", "run", "view"], drawText);
