// Large trees: how closely nodes stand, which branches are folded, and the search for a token. tree.js draws
// what is set here; folds and matches belong to the tree shown, the zoom and the query stay.

import { handle, setText } from "../core/dom.js";
import { onTouch, touch } from "../core/schedule.js";
import { drawnChildren, nodeOf, textOf } from "../core/step.js";
import { passing, selectNode, shownView, store } from "../core/store.js";
import { visible } from "../core/text.js";

const LARGE = 31; // nodes, beyond which the tools are shown by themselves

/** Levels of detail: share of a node's height and pitch; without labels only what the walk met has one. */
export const LEVELS = [
  { name: "dots", height: 0.3, pitch: 0.26, labelled: false },
  { name: "small", height: 0.5, pitch: 0.48, labelled: false },
  { name: "full", height: 1, pitch: 1, labelled: true },
];

export const tools = {
  level: LEVELS.length - 1,
  folds: new Set(), // nodes whose children are not drawn
  matches: [], // nodes that the search found, by number
};

const bar = handle("tree-tools");
const search = handle("tree-search");
const found = handle("tree-found");
const foldButton = handle("tree-fold");

let view = null;
let asked = false; // shown though the tree is small

/** The children that are drawn of a node. */
export const openChildren = (of, n) => (tools.folds.has(n) ? [] : drawnChildren(of, n));

/** How many nodes a fold hides. */
export function hiddenBelow(of, n) {
  let count = 0;
  const add = (node) => {
    for (const child of drawnChildren(of, node)) {
      count++;
      add(child);
    }
  };
  add(n);
  return count;
}

/** Open every fold above a node; whether there was one. */
export function unfoldTo(of, n) {
  let opened = false;
  for (let at = nodeOf(of, n)?.parent ?? -1; at >= 0; at = of.nodes[at].parent) opened = tools.folds.delete(at) || opened;
  return opened;
}

/** Fold or open the branch of a node; a leaf has none. */
export function toggleFold(n) {
  if (!view || n === null || drawnChildren(view, n).length === 0) return;
  if (!tools.folds.delete(n)) tools.folds.add(n);
  touch("treetools");
}

/** Fold every branch that the walk did not enter, or open all. */
function foldRest() {
  if (tools.folds.size) tools.folds.clear();
  else
    for (const node of view.nodes)
      if (node.children.length && !view.visited.has(node.n)) tools.folds.add(node.n);
  touch("treetools");
}

function look() {
  const query = search.value.trim().toLowerCase();
  tools.matches =
    view && query
      ? view.nodes.filter((node) => visible(textOf(node)).toLowerCase().includes(query) || String(node.n) === query).map((node) => node.n)
      : [];
}

/** Select the next match after the selected node, or the one before, round the end. */
function step(by) {
  const { matches } = tools;
  if (matches.length === 0) return;
  const at = store.selected === "bonus" ? Infinity : (store.selected ?? -1);
  const next = by > 0 ? (matches.find((n) => n > at) ?? matches[0]) : (matches.findLast((n) => n < at) ?? matches.at(-1));
  if (unfoldTo(view, next)) touch("treetools");
  selectNode(next);
}

function setLevel(level) {
  tools.level = Math.min(Math.max(level, 0), LEVELS.length - 1);
  touch("treetools");
}

export function openSearch() {
  asked = true;
  touch("treetools");
  requestAnimationFrame(() => search.focus());
}

function drawTools() {
  const next = shownView();
  if (next !== view) {
    view = next;
    tools.folds.clear();
    if (search.value) look();
  }
  bar.hidden = !view || !(asked || view.size > LARGE);
  if (bar.hidden || passing()) return;
  const { matches, level, folds } = tools;
  const at = matches.indexOf(store.selected);
  setText(found, search.value.trim() === "" ? "" : `${at < 0 ? "" : `${at + 1} of `}${matches.length} found`);
  for (const name of ["tree-next", "tree-prev"]) handle(name).disabled = matches.length === 0;
  handle("zoom-out").disabled = level === 0;
  handle("zoom-in").disabled = level === LEVELS.length - 1;
  setText(handle("zoom"), LEVELS[level].name);
  const { selected } = store;
  foldButton.disabled = selected == null || drawnChildren(view, selected).length === 0;
  setText(foldButton, folds.has(selected) ? `Open branch (${hiddenBelow(view, selected)})` : "Fold branch");
  setText(handle("tree-fold-rest"), folds.size ? "Open all" : "Fold the rest");
}

search.addEventListener("input", () => {
  look();
  if (tools.matches.length && !tools.matches.includes(store.selected)) step(1);
  touch("treetools");
});
search.addEventListener("keydown", (event) => {
  if (event.key === "Enter") {
    event.preventDefault();
    step(event.shiftKey ? -1 : 1);
    touch("treetools");
  } else if (event.key === "Escape") {
    search.value = "";
    asked = false;
    look();
    touch("treetools");
    handle("tree").focus();
  }
});
handle("tree-next").addEventListener("click", () => step(1));
handle("tree-prev").addEventListener("click", () => step(-1));
handle("zoom-in").addEventListener("click", () => setLevel(tools.level + 1));
handle("zoom-out").addEventListener("click", () => setLevel(tools.level - 1));
foldButton.addEventListener("click", () => toggleFold(store.selected));
handle("tree-fold-rest").addEventListener("click", foldRest);
onTouch(["view", "node", "treetools", "run"], drawTools);
