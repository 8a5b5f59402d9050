// The walk in words and numbers: one unit interval per coin, each child's half-open bucket on it, the coin a
// pin; where it stands is the verdict.

import { $, el, handle, icon, num, roving } from "../core/dom.js";
import { apart, count, fixed, prob } from "../core/format.js";
import { afterDrawing, onSettled, onTouch } from "../core/schedule.js";
import { textOf } from "../core/step.js";
import { passing, shownView, store } from "../core/store.js";
import { quoted, tok } from "../core/text.js";
import { coinPin } from "../parts/coins.js";
import { verdictMark } from "./card.js";
import { link, remark } from "./link.js";

const box = handle("verdicts");
const TICKS = [
  ["0", 0],
  [".25", 0.25],
  [".5", 0.5],
  [".75", 0.75],
  ["1", 1],
];

const ROOM = 0.2; // of the interval, for a label
const LAST = 40; // children of a visit that are written while steps pass by, all of them in a quiet moment
let short = false; // whether some are missing

const percent = (x) => `${(100 * x).toFixed(3)}%`;

function bucket(from, to, className, n, label = null) {
  const width = Math.max(Math.min(to, 1) - from, 0);
  const place = `left:${percent(Math.min(from, 1))};width:${percent(width)}`;
  return el("i", { class: `bucket ${className}`, style: place, data: n == null ? {} : { node: n } }, label);
}

/** Buckets of a visited node's children; a threshold below 1 stretches what is accepted. */
function interval(view, at, tried, sampling) {
  const stretch = sampling.threshold_acc > 0 ? 1 / sampling.threshold_acc : Infinity;
  const edge = (cumulative) => (cumulative > 0 ? Math.min(cumulative * stretch, 1) : 0);
  const written = passing() ? tried.slice(-LAST) : tried;
  const begin = written.length ? edge(written[0].cumulative - written[0].prob) : 0;
  const buckets = written.map((d) => {
    const [from, to] = [edge(d.cumulative - d.prob), edge(d.cumulative)];
    return bucket(from, to, d.verdict, d.node, label(textOf(view.nodes[d.node]), from, to, d.coin));
  });
  if (written.length < tried.length) buckets.unshift(bucket(0, begin, "rejected", null));
  let sum = tried.at(-1)?.cumulative ?? 0;
  const later = view.nodes[at].children.slice(tried.length);
  short ||= passing() && later.length > LAST;
  for (const n of passing() ? later.slice(0, LAST) : later) {
    const p = view.nodes[n].prob ?? 0;
    buckets.push(bucket(edge(sum), edge(sum + p), "later", n));
    sum += p;
  }
  buckets.push(bucket(edge(sum), 1, "rest", null));
  return el(
    "div",
    { class: "interval" },
    ...buckets,
    coinPin(view, at, view.nodes[at].coin),
  );
}

/** A label only where it fits; right of the pin, if the pin stands where it would begin. */
function label(text, from, to, coin) {
  const pinned = coin >= from && coin < from + ROOM;
  const begin = pinned ? coin : from;
  if (to - begin < ROOM) return null;
  const style = pinned ? `margin-left:calc(${percent((begin - from) / (to - from))} + 4px)` : null;
  return el("span", { style }, tok(text));
}

function saying(view, d, greedy, sampling) {
  const node = view.nodes[d.node];
  const words = el("span", {}, `node ${d.node} `, quoted(textOf(node)), ": ");
  if (greedy) {
    const raw = node.rawProb == null ? "" : ` (${prob(node.rawProb)} at T=1)`;
    words.append(
      "p ",
      num(d.prob === 1 ? "1" : "0"),
      d.prob === 1 ? `, the target’s choice${raw}:` : `, not the target’s choice${raw}:`,
    );
  } else {
    const [cumulative, coin] = apart(d.cumulative, d.coin);
    words.append("p ", num(prob(d.prob)), ", cumulative ", num(cumulative), ", coin ", num(coin));
    words.append(bySingle(d, sampling) ? `, p ≥ threshold ${sampling.threshold_single}:` : ":");
  }
  return el(
    "p",
    { class: `say ${node.verdict} ${d.verdict}`, tabindex: -1, data: { node: d.node } },
    verdictMark(d.verdict),
    words,
    el("em", {}, d.verdict),
    node.verdict === "uncounted" ? el("em", { class: "sub" }, "not counted") : null,
  );
}

/** Accepted by threshold_single alone. */
const bySingle = (d, sampling) =>
  d.verdict === "accepted" &&
  !(d.coin < d.cumulative / sampling.threshold_acc) &&
  sampling.threshold_single < 1;

function visit(view, at, tried, greedy) {
  const { sampling } = view.step;
  const head = el("div", { class: "at" }, `at ${at} `, tok(textOf(view.nodes[at])));
  const written = passing() ? tried.slice(-LAST) : tried;
  short ||= written.length < tried.length;
  const lines = written.map((d) => saying(view, d, greedy, sampling));
  if (lines.length === 0) lines.push(el("p", { class: "say none" }, el("i"), "no children: nothing to try"));
  const middle = greedy || tried.length === 0 ? null : interval(view, at, tried, sampling);
  return el(
    "div",
    { class: `visit${middle ? "" : " plain"}` },
    head,
    middle,
    el("div", { class: "says" }, ...lines),
  );
}

const SOURCES = {
  full_row: "from the whole row after a full path",
  residual: "from what the rejected left",
  argmax: "the target’s choice",
  last_tried: "the last child with mass: nothing was left",
};

function finalVisit(view, greedy) {
  const { bonus } = view;
  const words = el("span", {}, "bonus ", quoted(textOf(bonus)), ": ");
  if (greedy) words.append("the target’s choice after node ", num(bonus.parent), ":");
  else
    words.append(
      "p ",
      num(prob(bonus.prob)),
      " of the ",
      num(prob(bonus.residual)),
      " left, coin ",
      num(fixed(bonus.coin)),
      ":",
    );
  const line = el(
    "p",
    { class: "say bonus", tabindex: -1, title: SOURCES[bonus.source], data: { node: "bonus" } },
    icon("hex"),
    words,
    el("em", {}, "bonus"),
    bonus.counted ? null : el("em", { class: "sub" }, "not counted"),
  );
  let middle = null;
  if (!greedy && bonus.residual > 0 && bonus.source !== "last_tried") {
    const to = bonus.cumulative / bonus.residual;
    const from = Math.max(to - bonus.prob / bonus.residual, 0);
    middle = el(
      "div",
      { class: "interval" },
      bucket(0, from, "rest", null, from > 0.2 ? "ids below" : null),
      bucket(from, to, "bonus", "bonus", label(textOf(bonus), from, to, bonus.coin)),
      bucket(to, 1, "rest", null, to < 0.8 ? "ids above" : null),
      coinPin(view, "final", bonus.coin),
    );
  }
  return el(
    "div",
    { class: `visit final${middle ? "" : " plain"}` },
    el("div", { class: "at" }, greedy ? "then" : "final coin"),
    middle,
    el("div", { class: "says" }, line),
  );
}

function scale() {
  const ticks = TICKS.map(([label, at]) => el("i", { style: `left:${percent(at)}` }, label));
  return el(
    "div",
    { class: "scale", "aria-hidden": "true" },
    el("span"),
    el("div", { class: "ticks" }, ...ticks),
  );
}

function ruleOf(sampling) {
  if (!sampling) return "";
  if (sampling.rule === "greedy") return "accept the child with the target’s likeliest token";
  const { threshold_acc: acc, threshold_single: single } = sampling;
  if (acc === 1 && single === 1) return "accept the first child whose cumulative p exceeds the node’s coin";
  return `lossy: accept when coin < cumulative / ${acc}, or p ≥ ${single}`;
}

/** Nothing was tried: why. */
function silence(view) {
  if (view.step.index == null)
    return view.step.silence;
  if (view.step.error) return `The step failed: ${view.step.error.message}`;
  return "Nothing was drafted, so there was nothing to try.";
}

function drawWalk() {
  const view = shownView();
  short = false;
  const sampling = view?.step.sampling ?? null;
  $("#rule").textContent = ruleOf(sampling);
  $("#walkfacts").textContent = "";
  if (!view)
    return box.replaceChildren(
      el(
        "p",
        { class: "empty" },
        "Each visited node has one coin. Here it meets the node’s children, in the order they are tried.",
      ),
    );
  if (!view.bonus || !sampling) return box.replaceChildren(el("p", { class: "empty" }, silence(view)));
  const greedy = sampling?.rule === "greedy";
  const visits = view.path
    .map((at) => [at, view.decisions.filter((d) => d.at === at)])
    .filter(([at, tried]) => tried.length > 0 || view.nodes[at].children.length > 0);
  const nothing = view.size === 0 ? [el("p", { class: "empty" }, silence(view))] : [];
  box.replaceChildren(
    ...nothing,
    ...(greedy || view.size === 0 ? [] : [scale()]),
    ...visits.map(([at, tried]) => visit(view, at, tried, greedy)),
    finalVisit(view, greedy),
  );
  const rejected = view.decisions.filter((d) => d.verdict === "rejected").length;
  $("#walkfacts").replaceChildren(
    num(view.step.accept.accept_token_num),
    " accepted, ",
    num(rejected),
    " rejected, bonus",
  );
  box.setAttribute(
    "aria-label",
    `Walk: ${count(view.step.accept.accept_token_num, "draft")} accepted, ${rejected} rejected`,
  );
  remark();
}

/** Bring the line of the selected node into sight, inside the pane only. */
function reveal() {
  const line = $(`.say[data-node="${store.selected}"]`, box);
  if (!line) return;
  const frame = box.getBoundingClientRect();
  const { top, bottom } = line.getBoundingClientRect();
  if (top < frame.top + 16) box.scrollTop += top - frame.top - 16;
  else if (bottom > frame.bottom) box.scrollTop += bottom - frame.bottom + 4;
}

link(box);
roving(box, ".say[data-node]");
onSettled(() => short && drawWalk());
onTouch(["view"], drawWalk);
onTouch(["node", "view"], () => afterDrawing(reveal));
