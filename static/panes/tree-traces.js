// The tree as Plotly traces: fill says what became of a node, shape where it came from, an edge is as wide as
// the drafter's probability, the bar under a node as long as the target's.

import { plotly } from "../core/text.js";
import { Outlines, elbow, fills } from "./shapes.js";

/** Traces from back to front: [name, design token of its colour]. */
export const LAYERS = [
  ["grid", "--grid"],
  ["quiet", "--edge-quiet"],
  ["found", "--accent"],
  ["untried", "--untried"],
  ["rejected", "--rejected"],
  ["accepted", "--accepted"],
  ["bonusEdge", "--bonus-edge"],
  ["surface", "--surface"],
  ["tint", "--accepted-tint"],
  ["bonus", "--bonus"],
  ["sunken", "--sunken"],
  ["ngram", "--ngram"],
  ["ink", "--ink-2"],
  ["light", "--accepted-ink"],
  ["cross", "--rejected"],
  ["fault", "--rejected"],
  ["bang", "--surface"],
];
/** Design tokens of the texts of each verdict: token, number. */
const TEXTS = {
  root: ["--ink", "--ink-3"],
  accepted: ["--accepted-ink", "--accepted-ink"],
  rejected: ["--ink", "--ink-3"],
  untried: ["--untried-ink", "--ink-3"],
  unseen: ["--ink", "--ink-3"],
  uncounted: ["--ink-2", "--ink-3"],
  bonus: ["--bonus-ink", "--bonus-ink"],
  beyond: ["--ink-3", "--ink-3"],
};
export const COLOURS = [...new Set([...LAYERS.map(([, name]) => name), ...Object.values(TEXTS).flat()])];

const EDGE = { least: 1, most: 5 }; // px, at a draft probability of 0 and 1
const BAR = { gap: 2, height: 3 }; // under a node

/** Whether the what-if marker leaves the node out, or makes the bonus another draw. */
const beyond = (plan, { n }) =>
  Boolean(plan.cut?.cut) && (n === "bonus" ? !plan.cut.bonusKnown : n > plan.cut.budget);

/** Short pieces of a line through points. */
function* dashes(points, on, off) {
  let piece = [points[0]];
  let left = on;
  let drawing = true;
  for (let i = 1; i < points.length; i++) {
    let [x, y] = points[i - 1];
    const [x2, y2] = points[i];
    let length = Math.hypot(x2 - x, y2 - y);
    while (length > left) {
      x += ((x2 - x) * left) / length;
      y += ((y2 - y) * left) / length;
      length -= left;
      if (drawing) yield [...piece, [x, y]];
      piece = [[x, y]];
      drawing = !drawing;
      left = drawing ? on : off;
    }
    left -= length;
    piece.push([x2, y2]);
  }
  if (drawing && piece.length > 1) yield piece;
}

function drawEdge(layers, plan, item) {
  if (item.node.lost) return; // no pointer leads there
  const parent = plan.byNode.get(item.node.parent);
  const turn = item.x - plan.gap / 2;
  const points = elbow(parent.x + (parent.room ?? parent.w), parent.y, item.x, item.y, turn);
  const { verdict, draftLogProb } = item.node;
  const width = EDGE.least + (EDGE.most - EDGE.least) * Math.exp(draftLogProb ?? -Infinity);
  if (beyond(plan, item)) for (const piece of dashes(points, 3, 3)) layers.quiet.stroke(piece, EDGE.least);
  else if (item.n === "bonus") for (const piece of dashes(points, 4, 3)) layers.bonusEdge.stroke(piece, 2);
  else if (verdict === "uncounted")
    for (const piece of dashes(points, 2, 3)) layers.accepted.stroke(piece, width);
  else layers[{ accepted: "accepted", rejected: "rejected" }[verdict] ?? "quiet"].stroke(points, width);
}

/** [ring layer, width of the ring, inside layer] of each verdict; no inside: solid. */
const BODIES = {
  accepted: ["accepted", 0, null],
  rejected: ["rejected", 1.5, "surface"],
  untried: ["untried", 1, "surface"],
  unseen: ["untried", 1, "surface"],
  uncounted: ["accepted", 1, "tint"],
};

/** A dashed outline, in the colour of what became of the node as run. */
function drawGhost(layers, { x, y, w, h, node }) {
  const [left, right, top, bottom] = [x + 0.5, x + w - 0.5, y - h / 2 + 0.5, y + h / 2 - 0.5];
  const corner = node.n === "bonus" ? 9 : node.origin === "ngram" ? 1 : 5;
  const slant = node.n === "bonus" ? h / 2 - 0.5 : corner;
  const outline = [
    [left + corner, top],
    [right - corner, top],
    [right, top + slant],
    [right, bottom - slant],
    [right - corner, bottom],
    [left + corner, bottom],
    [left, bottom - slant],
    [left, top + slant],
    [left + corner, top],
  ];
  const [ring] = node.n === "bonus" ? ["bonusEdge"] : BODIES[node.verdict];
  for (const piece of dashes(outline, 3, 3)) layers[ring].stroke(piece, 1);
  if (node.origin === "ngram") layers.ngram.rect(x, y - h / 2, 2, h);
}

function drawBody(layers, item) {
  const { x, y, w, h, node } = item;
  const top = y - h / 2;
  if (node.n === "bonus") {
    const point = Math.min(9, h / 2);
    layers.bonusEdge.hexagon(x, top, w, h, point);
    const inside = layers[node.counted ? "bonus" : "surface"];
    if (!item.small) inside.hexagon(x + 2, top + 1.5, w - 4, h - 3, point - 0.5);
  } else if (node.n === 0) {
    layers.sunken.rect(x, top, w, h);
    for (const inset of item.small ? [0] : [0.5, 3])
      frame(layers.ink, x + inset, top + inset, w - 2 * inset, h - 2 * inset);
  } else {
    const square = node.origin === "ngram";
    const [ring, width, inside] = BODIES[node.verdict];
    layers[ring].round(x, top, w, h, square ? 2 : h / 2);
    if (inside) {
      layers[inside].round(x + width, top + width, w - 2 * width, h - 2 * width, square ? 1 : h / 2);
    }
    if (square) layers.ngram.rect(x, top, 4, h);
  }
}

/** A halo of a node that the search found. */
function drawFound(layers, { x, y, w, h }) {
  layers.found.round(x - 3, y - h / 2 - 3, w + 6, h + 6, h / 2 + 3);
}

/** Two short bars behind a node whose branch is folded. */
function drawFold(layers, { x, y, w, h }) {
  for (const by of [3, 6]) layers.ink.rect(x + w + by, y - h * 0.3, 1.5, h * 0.6);
}

function frame(layer, x, y, w, h) {
  layer.rect(x, y, w, 1);
  layer.rect(x, y + h - 1, w, 1);
  layer.rect(x, y, 1, h);
  layer.rect(x + w - 1, y, 1, h);
}

function drawMark(layers, item) {
  const { verdict } = item.node;
  const x = item.x + item.w - (item.n === "bonus" ? 18 : 14);
  if (verdict === "accepted") layers.light.check(x, item.y, 8);
  else if (verdict === "rejected") layers.cross.cross(x, item.y, 7);
  else if (verdict === "uncounted") layers.ink.cutoff(x, item.y, 8);
}

/** A triangle with an exclamation mark at the corner of a node that a fault belongs to. */
function drawFault(layers, { x, y, h }) {
  const [middle, top] = [x + 1, y - h / 2 - 3];
  layers.fault.polygon([
    [middle, top - 1],
    [middle + 7, top + 11],
    [middle - 7, top + 11],
  ]);
  layers.bang.rect(middle - 0.8, top + 3, 1.6, 4);
  layers.bang.rect(middle - 0.8, top + 8, 1.6, 1.6);
}

function drawBar(layers, item) {
  if (item.n === "bonus" || item.node.prob == null) return;
  const y = item.y + item.h / 2 + BAR.gap;
  layers.grid.rect(item.x + 2, y, item.w - 4, BAR.height);
  if (item.node.prob > 0)
    layers.ink.rect(item.x + 2, y, Math.max((item.w - 4) * item.node.prob, 0.5), BAR.height);
}

function labels(items, colours, fonts) {
  const span = (text, style) => `<span style="${style}">${plotly(text)}</span>`;
  const text = items.map((item) => {
    if (item.small) return item.label.map((part) => plotly(part.text)).join("");
    const [, number] = TEXTS[item.verdict].map((name) => colours[name]);
    const head = item.number
      ? span(item.number, `font-size:${fonts.micro}px;font-weight:400;fill:${number}`) + " "
      : "";
    return (
      head +
      item.label.map((part) => (part.mark ? span(part.text, "fill-opacity:.62") : plotly(part.text))).join("")
    );
  });
  return {
    uid: "texts",
    type: "scatter",
    mode: "text",
    x: items.map((item) => item.x + item.textX),
    y: items.map((item) => item.y),
    text,
    textposition: "middle right",
    textfont: {
      family: fonts.mono,
      size: items[0]?.small ? fonts.micro : fonts.size,
      color: items.map((item) => colours[item.small ? "--ink-2" : TEXTS[item.verdict][0]]),
      weight: items.map((item) => (item.strong ? 600 : 400)),
    },
    hoverinfo: "skip",
    cliponaxis: false,
  };
}

/**
 * Traces of the nodes whose lines lie within [from, to] pixels, in the order of LAYERS, the texts last.
 * @param {object} plan of layout
 * @param {Record<string, string>} colours by design token
 * @param {{mono: string, size: number, micro: number}} fonts
 */
export function traces(plan, colours, fonts, from, to) {
  const layers = Object.fromEntries(LAYERS.map(([name]) => [name, new Outlines()]));
  const within = (item) => item.y >= from && item.y <= to;
  const touches = (item) => {
    const parent = plan.byNode.get(item.node.parent);
    return Math.max(item.y, parent.y) >= from && Math.min(item.y, parent.y) <= to;
  };
  plan.columns.slice(1).forEach(({ x }) => layers.grid.rect(x - plan.gap / 2 - 0.5, 0, 1, plan.height));
  const edges = plan.items.filter((item) => item.n !== 0 && touches(item));
  for (const item of edges) drawEdge(layers, plan, item);
  const shown = plan.items.filter(within);
  for (const item of shown) {
    if (item.node.faults) drawFault(layers, item);
    if (plan.found.has(item.n)) drawFound(layers, item);
    if (plan.folded.has(item.n)) drawFold(layers, item);
    item.verdict = beyond(plan, item) ? "beyond" : item.node.verdict;
    if (item.verdict === "beyond") {
      drawGhost(layers, item);
      continue;
    }
    if (!item.small) drawBar(layers, item);
    drawBody(layers, item);
    if (!item.small) drawMark(layers, item);
  }
  const said = shown.filter((item) => item.label.length > 0);
  return [...fills(LAYERS, layers, colours), labels(said, colours, fonts)];
}
