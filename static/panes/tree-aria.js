// The tree for those who do not see it drawn: one item per node, in the order of the walk, with its level, its
// token, what became of it and its numbers. Filled when nothing passes by, or when the reader is in the tree.

import { el, handle } from "../core/dom.js";
import { fixed, prob } from "../core/format.js";
import { drawnChildren, nodeOf } from "../core/step.js";
import { visible } from "../core/text.js";
import { VERDICTS } from "./card.js";

const plot = handle("tree");
const list = el("div", { class: "offscreen", id: "treeitems", role: "none" });
plot.append(list);

let filled = null; // the view (and its folds) that the items are of
const idOf = (n) => `treeitem-${n}`;

/** A node in a sentence. */
export function sentence(node) {
  const token = node.text == null ? `id ${node.token_id ?? "none"}` : `‘${visible(node.text)}’`;
  if (node.n === 0) return `root ${token}`;
  const target = node.prob == null ? "not computed" : prob(node.prob);
  if (node.n === "bonus") return `bonus ${token}, drawn by the target with probability ${target}`;
  const draft = prob(Math.exp(node.draftLogProb));
  return `node ${node.n} ${token}, ${VERDICTS[node.verdict].words}, draft ${draft}, target ${target}, log-weight ${fixed(node.logWeight)}`;
}

function items(view, folds) {
  const out = [];
  const add = (n, place, size) => {
    const node = nodeOf(view, n);
    const children = drawnChildren(view, n);
    const folded = folds.has(n);
    out.push(
      el(
        "div",
        {
          role: "treeitem",
          id: idOf(n),
          "aria-level": node.depth + 1,
          "aria-posinset": place,
          "aria-setsize": size,
          "aria-expanded": children.length ? String(!folded) : null,
          data: { item: n },
        },
        sentence(node),
      ),
    );
    if (!folded) children.forEach((child, i) => add(child, i + 1, children.length));
  };
  add(0, 1, 1);
  return out;
}

/** Write the items of a view; `folds` are the nodes whose children are not shown. */
export function fillItems(view, folds) {
  const key = view && [view, [...folds].join(" ")];
  if (filled && key && filled[0] === key[0] && filled[1] === key[1]) return;
  filled = key;
  list.replaceChildren(...(view ? items(view, folds) : []));
  plot.setAttribute("role", view ? "tree" : "group");
}

/** Which item the reader is at. */
export function pointItem(n) {
  for (const old of list.querySelectorAll("[aria-selected]")) old.removeAttribute("aria-selected");
  const item = n == null ? null : document.getElementById(idOf(n));
  item?.setAttribute("aria-selected", "true");
  if (item) plot.setAttribute("aria-activedescendant", item.id);
  else plot.removeAttribute("aria-activedescendant");
}
