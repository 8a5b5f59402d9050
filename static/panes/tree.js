// The draft tree: one Plotly plot that is drawn again and again, halos and a card over it, pointer and arrows.

import { $, el, handle, px, token } from "../core/dom.js";
import { nodeOf } from "../core/step.js";
import { cutAt } from "../core/whatif.js";
import { passing, selectNode, shownView, store } from "../core/store.js";
import { onSettled, onTouch, touch } from "../core/schedule.js";
import { fillCard, placeCard } from "./card.js";
import { onHot, setHot } from "./link.js";
import { colours, draw, layoutOf, textWidth } from "./plot.js";
import { fillItems, pointItem } from "./tree-aria.js";
import { hit, layout } from "./tree-layout.js";
import { drawOverview, makeRoom, placeFrame } from "./tree-overview.js";
import { LEVELS, openChildren, toggleFold, tools, unfoldTo } from "./tree-tools.js";
import { COLOURS, traces } from "./tree-traces.js";

const MARGIN = 16; // px left and right of the tree
const WINDOW = { passing: 30, settled: 600 }; // px drawn above and below what can be seen

/** Where the nodes drawn last stand; null: nothing is drawn. */
export const shownPlan = () => plan;

const plot = handle("tree");
const canvas = $(".canvas", plot);
const host = $(".host", canvas);
const card = $("#card");
const section = plot.closest("section");

let view = null;
let plan = null;
let drawn = { from: 0, to: 0 };
let hot = null; // the node that is pointed at, here or in a list
let carded = null; // the same where it is pointed at or focused here: its card is shown
let pointer = null; // the last event of the pointer over the tree
let outlined = null; // the plan whose overview is drawn
let look = null; // colours, sizes and fonts, read again when the theme changes

function readLook() {
  const mono = token("--font-mono");
  const fonts = { mono, size: px("--fs-ui"), micro: px("--fs-micro") };
  const css = {
    plain: `400 ${fonts.size}px ${mono}`,
    strong: `600 ${fonts.size}px ${mono}`,
    micro: `400 ${fonts.micro}px ${mono}`,
  };
  return {
    head: px("--head-h"),
    colours: colours(COLOURS),
    fonts,
    sizes: LEVELS.map(({ height, pitch, labelled }) => ({
      h: px("--node-h") * height,
      pitch: px("--node-pitch") * pitch,
      pad: px("--node-pad"),
      margin: MARGIN,
      top: 4,
      labelled,
    })),
    measure: (text, kind) => textWidth(text, css[kind]),
  };
}

function drawWindow(around) {
  drawn = { from: plot.scrollTop - around, to: plot.scrollTop + plot.clientHeight + around };
  draw(host, traces(plan, look.colours, look.fonts, drawn.from, drawn.to), plan.width, plan.height);
}

/** The whole tree as a figure, for an image; null while there is none. */
export function treeFigure() {
  if (!plan) return null;
  const { height, items } = plan;
  const width = Math.ceil(Math.max(...items.map((item) => item.x + item.w)) + MARGIN);
  return { data: traces(plan, look.colours, look.fonts, 0, height), layout: layoutOf(width, height) };
}

/** Whether something within so many pixels of what can be seen has not been drawn. */
function clipped(around) {
  const { scrollTop, clientHeight } = plot;
  const from = Math.max(scrollTop - around, 0);
  const to = Math.min(scrollTop + clientHeight + around, plan.height);
  return from < drawn.from || to > drawn.to;
}

function drawColumns() {
  const root = view.step.root;
  const heads = plan.columns.map(({ x, w }, depth) =>
    el(
      "span",
      { style: `left:${x}px;min-width:${w}px` },
      depth ? `depth ${depth}` : "root",
      el("b", { class: "num" }, root.position == null ? "" : `pos ${root.position + depth}`),
    ),
  );
  $("#columns").replaceChildren(...heads);
  $("#columns").style.width = `${plan.width}px`;
}

/** Scroll so that the end of the walk can be seen: a large tree stands mostly outside the pane. */
function revealEnd() {
  reveal(plan.byNode.get("bonus") ?? plan.byNode.get(view.path.at(-1) ?? 0));
}

function reveal(item) {
  const head = look.head;
  const top = item.y - item.h;
  const bottom = item.y + item.h + head;
  if (top < plot.scrollTop) plot.scrollTop = top;
  else if (bottom > plot.scrollTop + plot.clientHeight) plot.scrollTop = bottom - plot.clientHeight;
  if (item.x < plot.scrollLeft) plot.scrollLeft = item.x - MARGIN;
  else if (item.x + item.w > plot.scrollLeft + plot.clientWidth) {
    plot.scrollLeft = item.x + item.w + MARGIN - plot.clientWidth;
  }
}

/** Lay the tree out; one that does not fit leaves room for the overview. */
function place() {
  const sizes = look.sizes[tools.level];
  const laid = () => layout(view, plot.clientWidth, sizes, look.measure, openChildren);
  plan = laid();
  if (makeRoom(plan.height / sizes.pitch, sizes.pitch)) plan = laid();
  Object.assign(plan, { head: look.head, folded: tools.folds, found: new Set(tools.matches) });
}

/** The overview, but not while steps pass by: it may wait for a quiet moment. */
function outline() {
  if (outlined === plan) return;
  drawOverview(plan, plan?.found);
  outlined = plan;
}

function drawTree(changed) {
  const next = shownView();
  plot.toggleAttribute("data-empty", !next);
  if (next !== view) setHot(null);
  if (!next) return clear();
  if (!look || changed.has("theme")) look = readLook();
  const same = next === view;
  view = next;
  place();
  plan.cut = view.cut ?? cutAt(view, store.whatif);
  canvas.style.width = `${plan.width}px`;
  canvas.style.height = `${plan.height}px`;
  drawColumns();
  if (!same) {
    plot.scrollTop = plot.scrollLeft = 0;
    revealEnd();
  } else if (changed.has("treetools")) reveal(plan.byNode.get(store.selected) ?? plan.byNode.get(0));
  drawWindow(passing() ? WINDOW.passing : WINDOW.settled);
  plot.setAttribute(
    "aria-label",
    view.step.index == null ? "Pasted tree" : `Draft tree of step ${view.step.index}`,
  );
  plot.dataset.step = view.step.index ?? "pasted";
  placeHalos();
  showCard(carded);
  if (document.activeElement === plot) say();
  if (!passing()) outline();
  plot.dispatchEvent(
    new CustomEvent("drawn", { bubbles: true, detail: { step: view.step.index, received: store.received } }),
  );
}

/** The items of those who do not see the drawing: not while steps pass by, unless the reader is here. */
function say() {
  fillItems(view, tools.folds);
  pointItem(view ? store.selected : null);
}

function clear() {
  view = plan = null;
  say();
  delete plot.dataset.step;
  for (const halo of canvas.querySelectorAll(".halo")) halo.hidden = true;
}

function placeHalo(halo, n) {
  const item = plan?.byNode.get(n);
  halo.hidden = !item;
  if (!item) return;
  const { style } = halo;
  style.left = `${item.x - 3}px`;
  style.top = `${item.y - item.h / 2 - 3}px`;
  style.width = `${item.w + 6}px`;
  style.height = `${item.h + 6}px`;
  halo.dataset.shape = item.node.origin;
}

function placeHalos() {
  placeHalo($(".halo.sel", canvas), store.selected);
  placeHalo($(".halo.hot", canvas), hot);
}

function showCard(n) {
  const item = plan?.byNode.get(n);
  card.hidden = !item;
  if (!item) return;
  fillCard(card, item.node, view);
  const x = plot.offsetLeft - plot.scrollLeft;
  const y = canvas.offsetTop + plot.offsetTop - plot.scrollTop;
  const boxOf = (one) => ({
    left: x + one.x,
    right: x + one.x + one.w,
    top: y + one.y - one.h / 2,
    bottom: y + one.y + one.h / 2 + 5, // the target's bar
  });
  placeCard(card, boxOf(item), plan.items.map(boxOf), {
    width: section.clientWidth,
    height: section.clientHeight,
  });
}

function nodeAt(event) {
  if (!plan || !canvas.contains(event.target)) return null;
  const origin = canvas.getBoundingClientRect();
  return hit(plan, event.clientX - origin.left, event.clientY - origin.top);
}

/** Arrows: left to the parent, right to the first child, up and down among siblings, then by number. */
function neighbour(key) {
  const n = store.selected;
  const node = nodeOf(view, n);
  if (!node) return 0;
  if (key === "ArrowLeft") return Math.max(node.parent, 0);
  if (key === "ArrowRight") return openChildren(view, n)[0] ?? n;
  if (n === 0) return 0;
  const siblings = openChildren(view, node.parent);
  const at = siblings.indexOf(n) + (key === "ArrowDown" ? 1 : -1);
  return siblings[at] ?? n;
}

plot.addEventListener("keydown", (event) => {
  if (event.key.toLowerCase() === "f" && !event.ctrlKey && !event.metaKey && !event.altKey) toggleFold(store.selected);
  if (!view || !/^Arrow/.test(event.key) || event.altKey || event.ctrlKey || event.metaKey) return;
  event.preventDefault();
  event.stopPropagation();
  selectNode(neighbour(event.key));
  const item = plan.byNode.get(store.selected);
  if (item) reveal(item);
  setHot(store.selected, "keys");
});
plot.addEventListener("focus", () => {
  say();
  if (plot.matches(":focus-visible") && view) setHot(store.selected, "keys");
});
plot.addEventListener("blur", () => setHot(null));
plot.addEventListener("pointermove", (event) => {
  pointer = event;
  setHot(nodeAt(event), "tree");
});
plot.addEventListener("pointerleave", () => {
  pointer = null;
  setHot(null);
});
plot.addEventListener("click", (event) => selectNode(nodeAt(event)));
plot.addEventListener("scroll", () => {
  if (!plan) return;
  if (pointer) setHot(nodeAt(pointer), "tree"); // another node may have come under it
  showCard(carded);
  placeFrame();
  if (clipped(0)) drawWindow(WINDOW.settled);
});
plot.addEventListener("dblclick", (event) => toggleFold(nodeAt(event)));
onSettled(() => {
  say();
  outline();
  if (plan && clipped(WINDOW.settled / 2)) drawWindow(WINDOW.settled);
});
onHot((n, source) => {
  hot = n;
  carded = source === "tree" || source === "keys" ? n : null;
  placeHalos();
  showCard(carded);
  plot.style.cursor = source === "tree" && hot != null ? "pointer" : "";
});
onTouch(["node"], () => {
  if (!plan) return;
  if (unfoldTo(view, store.selected)) touch("treetools");
  placeHalos();
  pointItem(store.selected);
  const item = plan.byNode.get(store.selected);
  if (item) reveal(item);
});

onTouch(["view", "theme", "size", "whatif", "treetools"], drawTree);
