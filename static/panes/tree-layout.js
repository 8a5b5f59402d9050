// Where the nodes of a tree stand, in pixels. Columns are depths. Every node shares its line with its first
// child, so that a chain is a straight line; further children stand below in the order tried, each subtree as
// high as it can without touching what is above it.

import { parts, cut } from "../core/text.js";
import { nodeOf, textOf } from "../core/step.js";

const LONGEST = 18; // characters of a token shown in a node
const MARK = 15; // px for the sign of a verdict
const MIN_COLUMN = 44;
const GAP = { least: 20, most: 72 };

/**
 * Lines: [line of each node], by contours. A contour holds, for each depth below a node, the lowest line its
 * subtree uses there, relative to the node's own line.
 */
function lines(view, children) {
  const offset = new Map([[0, 0]]); // node -> line relative to its parent's
  const contour = (n) => {
    const lowest = [0];
    children(view, n).forEach((child, i) => {
      const below = contour(child);
      let shift = 0;
      if (i > 0) below.forEach((_, k) => (shift = Math.max(shift, (lowest[k + 1] ?? -1) + 1)));
      offset.set(child, shift);
      below.forEach((line, k) => (lowest[k + 1] = shift + line));
    });
    return lowest;
  };
  contour(0);
  return offset;
}

function itemOf(node, measure, pad) {
  const label = node.text == null ? [{ text: node.n === 0 ? "root" : textOf(node), mark: false }] : cut(parts(node.text), LONGEST);
  const number = node.n === "bonus" ? "" : String(node.n);
  const strong = node.verdict === "accepted" || node.verdict === "bonus" || node.verdict === "root";
  const marked = ["accepted", "rejected", "uncounted"].includes(node.verdict);
  const numberWidth = number ? measure(number, "micro") + 6 : 0;
  const textWidth = measure(label.map((part) => part.text).join(""), strong ? "strong" : "plain");
  const ends = node.n === "bonus" ? pad + 5 : pad;
  const width = Math.ceil(2 * ends + numberWidth + textWidth + (marked ? MARK : 0));
  return { n: node.n, node, label, number, numberWidth, strong, textX: ends, w: width };
}

/** A node too small for a text: a shape, and beside it the token where the walk met it. */
function smallOf(item, { measure, w }) {
  const said = item.node.verdict !== "untried" && item.node.verdict !== "unseen";
  const label = said ? item.label : [];
  const text = label.map((part) => part.text).join("");
  return { ...item, small: true, label, number: "", w, textX: w + 3, room: said ? w + 6 + measure(text, "micro") : w };
}

/** Column starts; the gaps grow to fill the width at hand. */
function columnsOf(items, width, margin) {
  const widths = [];
  for (const { node, w, room: own = w } of items)
    widths[node.depth] = Math.max(widths[node.depth] ?? MIN_COLUMN, own);
  const used = widths.reduce((sum, w) => sum + w, 0);
  const room = (width - 2 * margin - used) / Math.max(widths.length - 1, 1);
  const gap = Math.min(Math.max(room, GAP.least), GAP.most);
  const columns = [];
  let x = margin;
  for (const w of widths) {
    columns.push({ x, w });
    x += w + gap;
  }
  return { columns, gap, right: x - gap + margin };
}

/**
 * @param {object} view of viewOf
 * @param {number} width pixels at hand
 * @param {{h, pitch, pad, margin, top}} sizes pixels
 * @param {(text: string, font: "plain"|"strong"|"micro") => number} measure width of a text
 * @param {(view: object, n: number | string) => (number | string)[]} children those that are drawn; a folded
 *   node has none, and says how many it hides
 * @returns {{items, byNode: Map, columns, gap, width, height}} items: {n, node, x, y (middle), w, h, line, ...}
 */
export function layout(view, width, sizes, measure, children) {
  const offset = lines(view, children);
  const items = [];
  const byNode = new Map();
  const place = (n, line) => {
    const whole = itemOf(nodeOf(view, n), measure, sizes.pad);
    const item = { ...(sizes.labelled ? whole : smallOf(whole, { measure, w: sizes.h * 2 })), h: sizes.h, line };
    items.push(item);
    byNode.set(n, item);
    for (const child of children(view, n)) place(child, line + offset.get(child));
  };
  place(0, 0);
  const { columns, gap, right } = columnsOf(items, width, sizes.margin);
  let last = 0;
  for (const item of items) {
    item.x = columns[item.node.depth].x;
    item.y = sizes.top + item.line * sizes.pitch + sizes.h / 2;
    last = Math.max(last, item.line);
  }
  return {
    items,
    byNode,
    columns,
    gap,
    pitch: sizes.pitch,
    width: Math.max(width, right),
    height: sizes.top + (last + 1) * sizes.pitch,
  };
}

/** The node under a point, or null. */
export function hit(plan, x, y) {
  const inside = (item) =>
    x >= item.x - 2 && x <= item.x + item.w + 2 && Math.abs(y - item.y) <= item.h / 2 + 4;
  return plan.items.find(inside)?.n ?? null;
}
