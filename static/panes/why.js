// Why a node stands or fell: the target's likeliest tokens beside the drafter's, and the reason in a sentence.

import { $, el, icon, num, svg } from "../core/dom.js";
import { apart, fixed, prob } from "../core/format.js";
import { onTouch } from "../core/schedule.js";
import { nodeOf, textOf } from "../core/step.js";
import { shownView, store } from "../core/store.js";
import { quoted, tok } from "../core/text.js";
import { verdictMark } from "./card.js";
import { setHot } from "./link.js";

const box = $("#why");
const ROW = 18; // px, the height of a line of either list
const LINKS = 22; // px, the gap between the lists

const WORDS = {
  accepted: "was accepted",
  rejected: "was rejected",
  untried: "was never tried",
  uncounted: "was accepted",
  bonus: "was drawn",
};

/** The reason in words; null where the numbers say it all. */
function reason(view, node) {
  const { sampling, committed } = view.step;
  const greedy = sampling?.rule === "greedy";
  if (node.verdict === "uncounted") {
    const last = committed.texts.length;
    return `the run ended with the ${last === 1 ? "first token" : `${last} tokens`} of this step: a stop token or the limit came first`;
  }
  if (node.n === "bonus") return null;
  if (node.verdict === "untried") {
    if (!view.visited.has(node.parent)) return `its parent, node ${node.parent}, is not on the accepted path`;
    const taken = view.nodes[node.parent].children.find((n) => view.path.includes(n));
    return taken === undefined ? "the path was full" : `node ${taken}, tried before it, was accepted`;
  }
  if (!node.decision) return null;
  if (greedy) return node.verdict === "rejected" ? "the target’s likeliest token here is another" : null;
  const [cumulative, coin] = apart(node.decision.cumulative, node.decision.coin);
  if (node.verdict === "rejected") {
    if (node.decision.prob === 0) return "the target gives it no probability";
    return `the coin ${coin} lies beyond the cumulative ${cumulative}`;
  }
  return `the coin ${coin} lies below the cumulative ${cumulative}`;
}

function fill(p, most) {
  return el("i", { class: "fill" }, el("i", { style: `width:${(100 * p) / most}%` }));
}

/** One side: [{id, text, p, title}] -> a list whose marks say what became of the token here. */
function side(view, at, entries, most, node, className) {
  const child = new Map(view.nodes[at].children.map((n) => [view.nodes[n].token_id, view.nodes[n]]));
  const lines = entries.map(({ id, text, p, title }) => {
    const found = child.get(id);
    const isBonus = view.bonus?.parent === at && view.bonus.token_id === id;
    const mark = found
      ? verdictMark(found.verdict)
      : isBonus
        ? icon("hex", "bonus")
        : el("i", { class: "nomark" });
    const verdict = found?.verdict ?? (isBonus ? "bonus" : "");
    const data = found || isBonus ? { node: found?.n ?? "bonus" } : {};
    const here = id === node.token_id ? " it" : "";
    return el(
      "li",
      { class: verdict + here, title, data },
      mark,
      tok(text),
      fill(p, most),
      el("b", {}, prob(p)),
    );
  });
  return el("ol", { class: className }, ...lines);
}

/** Lines between equal tokens of the two lists. */
function links(left, right, id) {
  const picture = svg("svg", {
    class: "links",
    width: LINKS,
    height: ROW * Math.max(left.length, right.length, 1),
    "aria-hidden": "true",
  });
  left.forEach((entry, i) => {
    const j = right.findIndex((other) => other.id === entry.id);
    const y = (i + 0.5) * ROW;
    const d = j < 0 ? `M4 ${y}h4` : `M4 ${y}L${LINKS - 4} ${(j + 0.5) * ROW}`;
    picture.append(svg("path", { d, class: j < 0 ? "stub" : entry.id === id ? "it" : "" }));
  });
  return picture;
}

function entriesOf(row, greedy) {
  const target = row.token_ids.map((id, i) => ({
    id,
    text: row.texts[i],
    p: greedy ? row.raw_probs[i] : row.probs[i],
    title: `id ${id}; sampled from ${prob(row.probs[i])}, at temperature 1 ${prob(row.raw_probs[i])}`,
  }));
  const drafter = row.draft_token_ids.map((id, i) => ({
    id,
    text: row.draft_texts[i],
    p: row.draft_probs[i],
    title: `id ${id}`,
  }));
  return { target, drafter };
}

function heads(view, greedy) {
  const { temperature } = view.step.settings;
  const target = el(
    "h3",
    {},
    "target ",
    el("span", { class: "unit" }, greedy ? "at T=1" : `at T=${temperature}`),
  );
  return [target, el("span"), el("h3", {}, "drafter")];
}

function comparison(view, at, node) {
  const row = view.rows.get(at);
  const greedy = view.step.sampling?.rule === "greedy";
  const { target, drafter } = entriesOf(row, greedy);
  const most = Math.max(...[...target, ...drafter].map((entry) => entry.p), 1e-9); // one scale for both
  const right = drafter.length
    ? side(view, at, drafter, most, node, "drafter")
    : el("p", { class: "empty" }, "the drafter has no row here");
  const twin = el(
    "div",
    { class: "twin" },
    ...heads(view, greedy),
    side(view, at, target, most, node, "target"),
    links(target, drafter, node.token_id),
    right,
  );
  const facts = [el("span", {}, "entropy ", num(fixed(row.entropy, 2)), " nat")];
  if (row.total_variation != null)
    facts.push(
      el(
        "span",
        { title: "total variation between target and drafter, at temperature 1" },
        "TV ",
        num(fixed(row.total_variation, 2)),
      ),
    );
  if (node.n === "bonus") facts.push(el("span", {}, "bonus: drafter rank ", num(node.rank ?? "none")));
  return [twin, el("p", { class: "foot" }, ...facts)];
}

/** Who gave it how much, when its token stands in neither list. */
function figuresLine(node) {
  if (node.n === "bonus" || (node.draftLogProb == null && node.prob == null)) return null;
  return el(
    "p",
    { class: "empty" },
    "drafter ",
    num(node.draftLogProb == null ? "not given" : prob(Math.exp(node.draftLogProb))),
    ", target ",
    num(node.prob == null ? "not computed" : prob(node.prob)),
  );
}

/** A pasted tree's node: its faults, what its walk decided, who gave it how much. */
function ofPasted(view, node) {
  const lines = (node.faults ?? []).map((fault) => el("p", { class: "reason fault" }, fault.message));
  const why = node.n === 0 || !view.step.sampling ? null : reason(view, node);
  if (why) lines.push(el("p", { class: "reason" }, quoted(textOf(node)), `: ${why}.`));
  return [...lines, figuresLine(node) ?? el("p", { class: "empty" }, "No target has seen a pasted tree.")];
}

function drawWhy() {
  const view = shownView();
  const node = view ? nodeOf(view, store.selected) : null;
  $("#whyfacts").replaceChildren();
  if (!node)
    return box.replaceChildren(
      el("p", { class: "empty" }, "Select a node to see what the target thought of it."),
    );
  if (view.step.index == null)
    return box.replaceChildren(...ofPasted(view, node));
  const at = node.n === 0 ? 0 : node.parent;
  const said =
    node.n === 0
      ? ["the root, ", quoted(node.text)]
      : [
          quoted(node.text),
          ` ${node.n === "bonus" ? WORDS.bonus : WORDS[node.verdict]} at node ${at}`,
          node.verdict === "uncounted" ? ", not counted" : "",
        ];
  $("#whyfacts").replaceChildren(...said);
  const why = node.n === 0 ? null : reason(view, node);
  const sentence = why ? [el("p", { class: "reason" }, `${why[0].toUpperCase()}${why.slice(1)}.`)] : [];
  if (view.rows.has(at)) return box.replaceChildren(...sentence, ...comparison(view, at, node));
  const unseen = view.step.error
    ? "The step failed before the target’s row was there."
    : `The walk never came to node ${at}, so the target’s row there was not computed.`;
  box.replaceChildren(...sentence, el("p", { class: "empty" }, unseen), figuresLine(node) ?? "");
}

box.addEventListener("pointerover", (event) => {
  const found = event.target.closest("[data-node]")?.dataset.node;
  setHot(found === undefined ? null : found === "bonus" ? found : Number(found), "list");
});
box.addEventListener("pointerleave", () => setHot(null));
onTouch(["view", "node"], drawWhy);
