// Keys of the whole page, and the list of them; fields, dialogs, the tree and the table keep their own.

import { $, $$, el, handle } from "../core/dom.js";
import { goTo, selectNode, setFollow, shownView, store } from "../core/store.js";
import { openSearch } from "../panes/tree-tools.js";
import { redo, undo } from "./history.js";
import { mainAction, stepOnce } from "./runbar.js";
import { openTab } from "./tabs.js";

const tabs = $$('.tabs [role="tab"]');

const focusRow = () => ($("tr[data-node].sel", handle("nodes")) ?? $("tr[data-node]", handle("nodes")))?.focus();

/** Select the next node by number, or the one before. */
function nodeBy(by) {
  const view = shownView();
  if (!view) return;
  const at = store.selected === "bonus" ? view.size + 1 : (store.selected ?? 0);
  const to = Math.min(Math.max(at + by, 0), view.size + (view.bonus ? 1 : 0));
  selectNode(to > view.size ? "bonus" : to);
}

/** [keys as shown, words, event.key of each, action]; without an action the element itself listens. */
const KEYS = [
  [["Ctrl", "Enter"], "run, from the prompt"],
  [["space"], "run, pause, resume; in a race: replay, pause", [" "], mainKey],
  [["."], "take one step", ["."], stepOnce],
  [["S"], "stop the run", ["s"], () => handle("stop").click()],
  [["←", "→"], "the step before, the step after", ["ArrowLeft", "ArrowRight"], (key) => goTo(store.at + (key === "ArrowLeft" ? -1 : 1))],
  [["Home", "End"], "the first step, the last one (and follow)", ["Home", "End"], (key) => (key === "Home" ? goTo(0) : goTo(Infinity, true))],
  [["C"], "continue from the step shown, as a new run", ["c"], () => handle("fork").click()],
  [["L"], "follow live, or stop following", ["l"], () => setFollow(!store.follow)],
  [["[", "]"], "the node before, the node after, by number", ["[", "]"], (key) => nodeBy(key === "[" ? -1 : 1)],
  [["T"], "into the tree; there the arrows go to parent, first child and siblings", ["t"], () => focusIn("step", "tree")],
  [["F"], "in the tree: fold the branch of the node, or open it"],
  [["/"], "find a token in the tree; Enter and Shift Enter go from match to match", ["/"], openSearch],
  [["N"], "into the table; there the arrows go from node to node", ["n"], () => focusIn("step", "nodes")],
  [["W"], "to the what-if marker", ["w"], () => focusIn("step", "whatif")],
  [["X"], "to the text", ["x"], () => handle("text").focus()],
  [["P"], "to the prompt", ["p"], () => handle("prompt").focus()],
  [["1", "2", "…"], "the views, from left to right", tabs.map((_, i) => String(i + 1)), (key) => openTab(tabs[Number(key) - 1].dataset.tab)],
  [["Ctrl", "Z"], "undo a change of settings; with Shift: redo"],
  [["D"], "light or dark", ["d"], () => $("#theme").click()],
  [["R"], "stored runs", ["r"], () => handle("runs").click()],
  [["I"], "import a trace", ["i"], () => handle("import").click()],
  [["E"], "export this run", ["e"], () => handle("export").click()],
  [["V"], "paste a tree", ["v"], () => handle("paste")?.click()],
  [["?"], "this list, and what every word means", ["?"], () => showHelp()],
  [["Tab"], "to everything else, in the order it stands; Delete on a line between panes gives it its size back"],
];

const ACTIONS = new Map(KEYS.flatMap(([, , names = [], action]) => names.map((name) => [name, action])));

function mainKey() {
  if (store.tab === "race" && !$("#lanes-body").hidden) handle("replay").click();
  else mainAction();
}

/** Focus what belongs to a view, which is shown first unless it can be seen. */
function focusIn(tab, name) {
  const focus = () => (name === "nodes" ? focusRow() : handle(name).focus());
  if (handle(name).checkVisibility()) return focus();
  openTab(tab);
  requestAnimationFrame(focus);
}

function showHelp() {
  $("#help-dialog").showModal();
}

function list() {
  const caps = (keys) => keys.flatMap((key, i) => (i ? [" ", el("kbd", {}, key)] : [el("kbd", {}, key)]));
  $("#keylist").replaceChildren(
    ...KEYS.map(([keys, words]) => el("div", {}, el("dt", {}, ...caps(keys)), el("dd", {}, words))),
  );
}

/** Where a key means something of its own. */
const TAKEN = 'input, textarea, select, [role="slider"], [role="separator"], [role="scrollbar"]';
const TYPED = 'textarea, input[type="text"], input[type="number"], input[type="search"]'; // undo is the field's own
const PRESSES = [" ", "Enter"]; // a button or a summary

function historyKey(event) {
  const key = event.key.toLowerCase();
  if (!(event.ctrlKey || event.metaKey) || event.altKey || event.target.closest(TYPED)) return false;
  if (key !== "z" && key !== "y") return false;
  event.preventDefault();
  if (key === "y" || event.shiftKey) redo();
  else undo();
  return true;
}

addEventListener("keydown", (event) => {
  if (event.defaultPrevented || event.target.closest("dialog") || historyKey(event)) return;
  if (event.altKey || event.ctrlKey || event.metaKey) return;
  const target = event.target;
  if (target.closest(TAKEN)) return;
  if (target.closest("button, summary") && PRESSES.includes(event.key)) return;
  if (target.closest('[role="tab"]') && /^(Arrow|Home|End)/.test(event.key)) return;
  const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
  const action = ACTIONS.get(key);
  if (!action) return;
  event.preventDefault();
  action(key);
});
list();
$("#help").addEventListener("click", showHelp);
