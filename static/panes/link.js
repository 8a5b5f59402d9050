// Pointing at a node anywhere marks it everywhere. Elements that stand for a node carry data-node.

import { $$ } from "../core/dom.js";
import { onTouch } from "../core/schedule.js";
import { selectNode, store } from "../core/store.js";

let hot = null;
const listeners = [];

/** Called with (node | null, source) whenever another node is pointed at. */
export const onHot = (listener) => listeners.push(listener);

export function setHot(n, source = "") {
  if (n === hot && source !== "keys") return;
  hot = n;
  mark("hot", n);
  for (const listener of listeners) listener(n, source);
}

const linked = [];
export const toNode = (handle) => (handle === "bonus" ? handle : Number(handle));

function mark(className, n) {
  for (const container of linked) {
    for (const old of $$(`.${className}`, container)) old.classList.remove(className);
    if (n == null) continue;
    for (const found of $$(`[data-node="${n}"]`, container)) found.classList.add(className);
  }
}

/** Mark the selected node again in containers that were drawn anew. */
export const remark = () => mark("sel", store.selected);

/** Link the elements of a container: pointing and focusing mark, clicking and focusing by key select. */
export function link(container) {
  linked.push(container);
  const at = (event) => event.target.closest?.("[data-node]")?.dataset.node;
  container.addEventListener("pointerover", (event) =>
    setHot(at(event) === undefined ? null : toNode(at(event)), "list"),
  );
  container.addEventListener("pointerleave", () => setHot(null));
  container.addEventListener("click", (event) => at(event) !== undefined && selectNode(toNode(at(event))));
  container.addEventListener("focusin", (event) => {
    if (at(event) === undefined) return;
    setHot(toNode(at(event)), "list");
    if (event.target.matches(":focus-visible")) selectNode(toNode(at(event)));
  });
  container.addEventListener("focusout", () => setHot(null));
}

onTouch(["node"], remark);
