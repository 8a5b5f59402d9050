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
  const position =
    view.step.root.position == null ? [] : [["position", view.step.root.position + node.depth]];
  if (node.n === "bonus") {
    const rank = node.rank == null ? "none" : node.rank;
    return [
      ["id", node.token_id],
      ["drawn", node.source.replace("_", " ")],
      ["p target", prob(node.prob)],
      ["draft rank", rank],
      ["coin", fixed(node.coin)],
      ...position,
    ];
  }
  if (node.n === 0) return [["id", node.token_id ?? "none"], ["coin", fixed(node.coin)], ...position];
  const target = node.prob == null ? "not computed" : prob(node.prob);
  const list = [
    ["id", node.token_id],
    ["origin", node.verdict === "unseen" ? "pasted" : ORIGINS[node.origin]],
    ["rank", node.rank],
    ["log-weight", fixed(node.logWeight)],
    ["p draft", prob(Math.exp(node.draftLogProb))],
    ["p target", target],
  ];
  if (node.rawProb != null) list.push(["at T=1", prob(node.rawProb)]);
  return [...list, ...position];
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

/** Place the card beside a box of `frame`'s coordinates, where it covers neither the box nor the frame's edge. */
export function placeCard(card, box, frame) {
  const gap = 8;
  const { offsetWidth: w, offsetHeight: h } = card;
  const right = box.right + gap + w <= frame.width;
  const left = right ? box.right + gap : Math.max(gap, Math.min(box.left, frame.width - w - gap));
  const below = right ? box.top : box.bottom + gap;
  const top = below + h <= frame.height ? below : Math.max(gap, (right ? box.bottom : box.top - gap) - h);
  card.style.left = `${left}px`;
  card.style.top = `${top}px`;
}
