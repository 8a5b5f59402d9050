// Keys of the whole page; fields, dialogs, the tree and the table keep their own.

import { $, handle } from "../core/dom.js";
import { goTo, store } from "../core/store.js";
import { mainAction, stepOnce } from "./runbar.js";

const ACTIONS = {
  " ": mainAction,
  ".": stepOnce,
  ArrowLeft: () => goTo(store.at - 1),
  ArrowRight: () => goTo(store.at + 1),
  Home: () => goTo(0),
  End: () => goTo(Infinity, true),
  t: () => handle("tree").focus(),
  n: () => ($("tr[data-node].sel", handle("nodes")) ?? $("tr[data-node]", handle("nodes")))?.focus(),
  "?": () => $("#help-dialog").showModal(),
};

/** Where a key means something of its own. */
const TAKEN = 'input, textarea, select, [role="slider"], [role="separator"]';
const PRESSES = [" ", "Enter"]; // a button or a summary

addEventListener("keydown", (event) => {
  if (event.altKey || event.ctrlKey || event.metaKey || event.defaultPrevented) return;
  const target = event.target;
  if (target.closest(`dialog, ${TAKEN}`)) return;
  if (target.closest("button, summary") && PRESSES.includes(event.key)) return;
  const action = ACTIONS[event.key.length === 1 ? event.key.toLowerCase() : event.key];
  if (!action) return;
  event.preventDefault();
  action();
});
$("#help").addEventListener("click", () => $("#help-dialog").showModal());
