// The whole tree in a strip beside it, and in it a frame around what can be seen: dragged, it scrolls the tree;
// a press elsewhere goes there. For trees that do not fit.

import { handle, token } from "../core/dom.js";
import { draw } from "./plot.js";

const MOST = 1.4; // screens, beyond which the strip is shown
const LEAST = 6; // px, of the frame
const COLOURS = { accepted: "--accepted", rejected: "--rejected", uncounted: "--accepted", bonus: "--bonus-edge", root: "--ink" };
const LAYERS = ["--untried", "--rejected", "--accepted", "--bonus-edge", "--ink", "--accent"];

const plot = handle("tree");
const strip = handle("tree-overview");
const host = strip.querySelector(".host");
const frame = strip.querySelector(".frame");

let plan = null;
let scale = { x: 1, y: 1 };

/** One filled trace for each colour: small bars where the nodes stand. */
function traces(matches) {
  const layers = Object.fromEntries(LAYERS.map((name) => [name, { x: [], y: [] }]));
  const h = Math.min(Math.max(plan.pitch * scale.y - 0.5, 1), 3);
  for (const item of plan.items) {
    const name = matches.has(item.n) ? "--accent" : (COLOURS[item.node.verdict] ?? "--untried");
    const [left, right] = [item.x * scale.x, Math.max((item.x + item.w) * scale.x, item.x * scale.x + 2)];
    const [top, bottom] = [item.y * scale.y - h / 2, item.y * scale.y + h / 2];
    layers[name].x.push(left, right, right, left, left, null);
    layers[name].y.push(top, top, bottom, bottom, top, null);
  }
  return LAYERS.filter((name) => layers[name].x.length).map((name) => ({
    uid: name,
    type: "scatter",
    mode: "none",
    fill: "toself",
    fillcolor: token(name),
    ...layers[name],
    hoverinfo: "skip",
    line: { simplify: false },
  }));
}

/** Show the strip beside a tree of so many lines, or hide it; whether that changed the room of the tree. */
export function makeRoom(lines, pitch) {
  const large = lines * pitch > MOST * plot.clientHeight;
  const changed = strip.hidden === large;
  strip.hidden = !large;
  plot.toggleAttribute("data-beside", large);
  return changed;
}

/** Draw the strip of a plan; null: there is none. `matches`: nodes that a search found. */
export function drawOverview(next, matches) {
  plan = next;
  if (!plan || strip.hidden) return;
  strip.style.top = `${plot.offsetTop}px`;
  strip.style.height = `${plot.clientHeight}px`;
  const { clientWidth: w, clientHeight: h } = strip;
  scale = { x: w / plan.width, y: h / (plan.height + plan.head) };
  draw(host, traces(matches), w, h);
  placeFrame();
}

/** The frame follows the tree. */
export function placeFrame() {
  if (!plan || strip.hidden) return;
  const { style } = frame;
  style.left = `${plot.scrollLeft * scale.x}px`;
  style.width = `${Math.max(plot.clientWidth * scale.x, LEAST)}px`;
  style.top = `${plot.scrollTop * scale.y}px`;
  style.height = `${Math.max(plot.clientHeight * scale.y, LEAST)}px`;
  const most = Math.max(plot.scrollHeight - plot.clientHeight, 1);
  strip.setAttribute("aria-valuenow", Math.round((100 * plot.scrollTop) / most));
}

/** Scroll so that the middle of what can be seen is the point of the strip. */
function goTo(event) {
  const box = strip.getBoundingClientRect();
  plot.scrollTop = (event.clientY - box.top) / scale.y - plot.clientHeight / 2;
  plot.scrollLeft = (event.clientX - box.left) / scale.x - plot.clientWidth / 2;
}

strip.addEventListener("pointerdown", (event) => {
  event.preventDefault();
  strip.setPointerCapture(event.pointerId);
  goTo(event);
  strip.focus();
});
strip.addEventListener("pointermove", (event) => strip.hasPointerCapture(event.pointerId) && goTo(event));
strip.addEventListener("keydown", (event) => {
  const page = plot.clientHeight * 0.9;
  const by = { ArrowUp: -40, ArrowDown: 40, PageUp: -page, PageDown: page, Home: -Infinity, End: Infinity }[event.key];
  if (by === undefined) return;
  event.preventDefault();
  event.stopPropagation();
  plot.scrollTop = Math.min(Math.max(plot.scrollTop + by, 0), plot.scrollHeight);
});
