// What stands in the tree's place while there is no tree: loading, an invitation, waiting, or what went wrong.

import { $, el, handle } from "../core/dom.js";
import { onTouch } from "../core/schedule.js";
import { shownView, store } from "../core/store.js";
import { start } from "./runbar.js";

const blank = $("#blank");

const EXAMPLES = [
  "Write a short story about a lighthouse keeper who finds a letter.",
  "Explain in three sentences why the sky is blue.",
  "List the days of the week, then list them again in reverse order.",
];

const title = (text) => el("p", { class: "title" }, text);

function bar(share) {
  const inner = el("i", { style: `width:${100 * (share ?? 0.3)}%` });
  return el(
    "div",
    {
      class: "progress",
      role: "progressbar",
      "aria-label": "Loading",
      "aria-valuemin": 0,
      "aria-valuemax": 100,
      "aria-valuenow": share == null ? null : Math.round(100 * share),
      data: share == null ? { unknown: "" } : {},
    },
    inner,
  );
}

function invitation() {
  const list = EXAMPLES.map((text) => {
    const button = el("button", { type: "button", class: "example" }, text);
    button.addEventListener("click", () => {
      handle("prompt").value = text;
      start();
    });
    return el("li", {}, button);
  });
  return [
    title("Type a prompt and run it"),
    el(
      "p",
      {},
      "Each step drafts a tree of continuations, the target scores all of it at once, and a walk accepts one path. Or begin with one of these:",
    ),
    el("ul", {}, ...list),
  ];
}

function loading(model) {
  return [title("Loading the model"), el("p", {}, model.message || "starting"), bar(model.progress)];
}

function ofRun(run) {
  if (run.state === "waiting")
    return [
      title(run.place ? `Waiting, place ${run.place}` : "Waiting"),
      el("p", {}, "Other runs decode first; this one begins by itself."),
    ];
  if (run.state === "prefill")
    return [
      title("Reading the prompt"),
      el("p", {}, `${run.head.prompt.token_ids.length} tokens`),
      bar(run.progress),
    ];
  if (run.state === "running") return [title("Drafting the first tree")];
  if (run.state === "paused")
    return [title("Paused before the first step"), el("p", {}, "Step takes one step, Resume decodes on.")];
  return [
    title("This run has no steps"),
    el(
      "p",
      {},
      run.state === "interrupted"
        ? "The server was stopped before the first one."
        : "It ended before the first one.",
    ),
  ];
}

/** The step is there, but has no tree to draw. */
function ofStep({ step, bonus, size }) {
  if (step.error) {
    const depth = step.error.depth == null ? "" : ` at depth ${step.error.depth}`;
    return [title(`Step ${step.index} failed${depth}`), el("p", { class: "fault" }, step.error.message)];
  }
  return size === 0 && !bonus
    ? [title("An empty tree"), el("p", {}, "The root alone: no candidate came in.")]
    : null;
}

function content() {
  const { model, run, at } = store;
  const view = shownView();
  if (view) return ofStep(view);
  if (run) return at >= 0 ? [title(`Fetching step ${at}`)] : ofRun(run);
  if (!model) return [title("Connecting")];
  if (model.model === "loading") return loading(model);
  if (model.model === "failed")
    return [
      title("The model could not be loaded"),
      el("p", { class: "fault" }, model.message),
      el("p", {}, "Traces can still be imported, and trees pasted."),
    ];
  return invitation();
}

function drawBlank() {
  const shown = content();
  blank.hidden = !shown;
  blank.replaceChildren(...(shown ?? []));
}

onTouch(["view", "run", "model", "steps"], drawBlank);
