// Legends: samples drawn with the same shapes and tokens as what they explain; and the facts of a tree.

import { $, el, num, svg } from "../core/dom.js";
import { count, fixed, millis, setting } from "../core/format.js";
import { onTouch } from "../core/schedule.js";
import { leavePasted, shownView, store } from "../core/store.js";

const rect = (props) => svg("rect", { x: 0.5, y: 1.5, width: 21, height: 11, rx: 5.5, ...props });
const path = (d, props = {}) => svg("path", { d, ...props });

const SAMPLES = [
  ["fault", [path("M11 1.5l6.5 11h-13z", { class: "s-fault" }), path("M11 5.5v3.5M11 10.5v1", { class: "s-bang" })]],
  ["accepted", [rect({ class: "s-accepted" }), path("M8 7.2l2.4 2.4L14.5 4.6", { class: "s-light" })]],
  ["rejected", [rect({ class: "s-rejected" }), path("M8.5 4.5l5 5m0-5l-5 5", { class: "s-cross" })]],
  ["never tried", [rect({ class: "s-untried" })]],
  ["not counted", [rect({ class: "s-uncounted" }), path("M7 7h5M14 4v6", { class: "s-ink" })]],
  ["bonus", [path("M5.5 1.5h11l5 5.5l-5 5.5h-11l-5-5.5z", { class: "s-bonus" })]],
  [
    "n-gram",
    [
      rect({ class: "s-untried", rx: 2 }),
      svg("rect", { class: "s-ngram", x: 0.5, y: 1.5, width: 4, height: 11 }),
    ],
  ],
  [
    "p draft",
    [
      path("M1 7h9", { class: "s-edge", "stroke-width": 1.5 }),
      path("M11 7h10", { class: "s-edge", "stroke-width": 4.5 }),
    ],
  ],
  [
    "p target",
    [
      svg("rect", { class: "s-track", x: 1, y: 5.5, width: 20, height: 3 }),
      svg("rect", { class: "s-bar", x: 1, y: 5.5, width: 13, height: 3 }),
    ],
  ],
];

function legends() {
  const sample = (parts) =>
    svg(
      "svg",
      { class: "key", width: 19, height: 12, viewBox: "0 0 22 14", "aria-hidden": "true" },
      ...parts,
    );
  $("#legend").replaceChildren(
    ...SAMPLES.map(([name, parts]) => el("li", { data: { of: name, term: name } }, sample(parts), name)),
  );
  const texts = [
    ["dflash", "dflash"],
    ["ngram", "n-gram"],
    ["bonus", "bonus"],
    ["prompt", "prompt"],
  ];
  const keys = texts.map(([origin, name]) => el("li", {}, el("span", { class: `t ${origin}` }, "ab"), name));
  $("#textlegend").replaceChildren(...keys, el("li", {}, el("i", { class: "divider" }), "step"));
}

/** Only what there is to see needs a sample. */
function drawLegend(view) {
  const has = (test) => view?.nodes.some(test) ?? false;
  const shown = {
    fault: has((node) => node.faults),
    "not counted": view?.bonus?.counted === false,
    "n-gram": has((node) => node.origin === "ngram"),
  };
  for (const item of $("#legend").children) item.hidden = shown[item.dataset.of] === false;
}

/** That the step chose its budget, and from what. */
function autoFact({ ceiling, emitted, ms }) {
  const title = ceiling
    ? `Of ${ceiling} nodes at most, the number that promised the most tokens a second: ${fixed(emitted, 2)} tokens in ${millis(ms)} ms`
    : "Drafting had promised fewer tokens a second than plain decoding: this step did without";
  return el("span", { title, data: { testid: "auto-fact" } }, ", auto");
}

/** What the tree is made with: "15 of 15 nodes", drafter, temperature. */
function drawFacts() {
  const view = shownView();
  drawLegend(view);
  const facts = $("#treefacts");
  if (!view) return facts.replaceChildren();
  const { step } = view;
  const nodes =
    step.settings.budget == null
      ? [num(view.size), view.size === 1 ? " node" : " nodes"]
      : [num(view.size), ` of ${step.settings.budget} nodes`];
  if (step.auto) nodes.splice(1, 1, view.size === 1 ? " node" : " nodes", autoFact(step.auto)); // it is all used
  if (step.index == null) {
    const back = el(
      "button",
      { type: "button", class: "quiet", id: "back" },
      store.run ? "Back to the run" : "Close",
    );
    back.addEventListener("click", leavePasted);
    return facts.replaceChildren(...nodes, ", pasted ", back);
  }
  if (step.settings.method === "autoregressive")
    return facts.replaceChildren("nothing drafted, method autoregressive");
  const { drafter, temperature, top_p, top_k, method } = step.settings;
  const words = [
    method === "ddtree" ? null : method,
    setting(step.draft?.source ?? drafter).replace("ngram", "n-gram"),
    `T ${temperature}`,
    top_p < 1 ? `top-p ${top_p}` : null,
    top_k > 0 ? `top-k ${top_k}` : null,
  ];
  const shown = method === "chain" ? [count(view.size, "node"), ...nodes.slice(2)] : nodes;
  facts.replaceChildren(...shown, ` · ${words.filter(Boolean).join(" · ")}`);
}

legends();
onTouch(["view"], drawFacts);
