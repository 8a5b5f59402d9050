// The card of a node: what there is to know of it, beside it while it is pointed at or focused.

import { el, icon } from "../core/dom.js";
import { fixed, prob } from "../core/format.js";
import { tok } from "../core/text.js";

export const VERDICTS = {
  accepted: { icon: "check", words: "accepted" },
  rejected: { icon: "cross", words: "rejected" },
  untried: { icon: null, words: "never tried" },
  unseen: { icon: null, words: "no target" },
  uncounted: { icon: "cutoff", words: "not counted" },
  bonus: { icon: "hex", words: "bonus" },
  root: { icon: null, words: "root" },
};
export const ORIGINS = { dflash: "dflash", ngram: "n-gram", bonus: "target", root: "committed" };

/** The sign of a verdict, as it stands in lists. */
export function verdictMark(verdict) {
  const { icon: name } = VERDICTS[verdict];
  if (name) return icon(name);
  return el("i", { class: verdict === "untried" ? "ring" : "nomark" });
}

function figures(node, view) {
  const faults = (node.faults ?? []).map((fault) => ["fault", fault.message]);
  const position =
    view.step.root.position == null ? [] : [["position", view.step.root.position + node.depth]];
  if (node.n === "bonus") {
    const rank = node.rank == null ? "none" : node.rank;
    return [
      ["id", node.token_id ?? "another"],
      ["drawn", node.source?.replace("_", " ") ?? "recorded"],
      ["p target", prob(node.prob)],
      ["draft rank", rank],
      ["coin", fixed(node.coin)],
      ...position,
    ];
  }
  if (node.n === 0)
    return [["id", node.token_id ?? "none"], ["coin", fixed(node.coin)], ...position, ...faults];
  const target = node.prob == null ? "not computed" : prob(node.prob);
  const list = [
    ["id", node.token_id ?? "not given"],
    ["origin", view.step.index == null ? "pasted" : ORIGINS[node.origin]],
    ["rank", node.rank ?? "not given"],
    ["log-weight", fixed(node.logWeight)],
    ["p draft", node.draftLogProb == null ? "not given" : prob(Math.exp(node.draftLogProb))],
    ["p target", target],
  ];
  if (node.rawProb != null) list.push(["at T=1", prob(node.rawProb)]);
  return [...list, ...position, ...faults];
}

/** Fill the card; returns a sentence of the same, for those who hear it. */
export function fillCard(card, node, view) {
  const title = node.n === "bonus" ? "bonus" : node.n === 0 ? "root" : `node ${node.n}`;
  const words = node.n === 0 ? "" : VERDICTS[node.verdict].words;
  const rows = figures(node, view).map(([name, value]) =>
    el("div", {}, el("dt", {}, name), el("dd", { class: "num" }, String(value))),
  );
  const verdict = el("em", {}, words ? verdictMark(node.verdict) : "", words === title ? "drawn" : words);
  card.replaceChildren(
    el("p", { class: node.verdict }, title, " ", node.text == null ? "" : tok(node.text), verdict),
    el("dl", {}, ...rows),
  );
}

const GAP = 8; // px between a node and its card

const overlap = (a, b) =>
  Math.max(0, Math.min(a.right, b.right) - Math.max(a.left, b.left)) *
  Math.max(0, Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top));

/** Place the card beside a box, where it covers least of the other boxes; all in the frame's coordinates. */
export function placeCard(card, box, others, frame) {
  const { offsetWidth: w, offsetHeight: h } = card;
  const at = (left, top) => ({ left, top, right: left + w, bottom: top + h });
  const places = [
    at(box.left, box.bottom + GAP),
    at(box.right - w, box.bottom + GAP),
    at(box.left, box.top - GAP - h),
    at(box.right - w, box.top - GAP - h),
    at(box.right + GAP, box.top),
    at(box.right + GAP, box.bottom - h),
    at(box.left - GAP - w, box.top),
    at(box.left - GAP - w, box.bottom - h),
    at(box.left, frame.height - h - GAP),
  ];
  const inside = ({ left, top, right, bottom }) =>
    left >= GAP && top >= GAP && right <= frame.width - GAP && bottom <= frame.height - GAP;
  const covered = (place) => others.reduce((sum, other) => sum + overlap(place, other), 0);
  const best = places
    .filter(inside)
    .map((place) => ({ place, cost: covered(place) }))
    .reduce((a, b) => (b.cost < a.cost ? b : a), { place: at(GAP, GAP), cost: Infinity }).place;
  card.style.left = `${best.left}px`;
  card.style.top = `${best.top}px`;
}
