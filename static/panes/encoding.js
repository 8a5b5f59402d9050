// The encoding in the tree: each pointer that is written so far as an arrow, first child or next sibling; the
// newest one draws itself, unless the reader wants no motion.

import { $, $$, handle, svg } from "../core/dom.js";
import { inspected } from "../core/inspect.js";
import { onTouch } from "../core/schedule.js";
import { shownView, store } from "../core/store.js";
import { shownPlan } from "./tree.js";

const layer = $("#pointers");
let newest = null; // the pointer that was drawn last

function pathOf({ array, at, node }, plan) {
  const [from, to] = [plan.byNode.get(at), plan.byNode.get(node)];
  if (!from || !to) return ""; // folded away
  if (array === "retrieve_next_token") {
    const turn = to.x - plan.gap / 2;
    return `M${from.x + from.w} ${from.y}H${turn}V${to.y}H${to.x - 2}`;
  }
  const out = to.x - Math.min(14, plan.gap / 2);
  const [top, bottom] = [from.y + 4, to.y - 3];
  return `M${from.x} ${top}C${out} ${top} ${out} ${bottom} ${to.x - 1} ${bottom}`;
}

function drawPointers() {
  const plan = shownPlan();
  const count = store.pasted ? inspected.encode : null;
  const written = plan && count !== null ? inspected.tree.encoding.slice(0, count) : [];
  layer.toggleAttribute("hidden", written.length === 0);
  layer.setAttribute("width", plan?.width ?? 0);
  layer.setAttribute("height", plan?.height ?? 0);
  const last = written.at(-1) ?? null;
  const paths = written.map((pointer) => {
    const kind = pointer.array === "retrieve_next_token" ? "child" : "sibling";
    const fresh = pointer === last ? (last === newest ? " newest" : " newest fresh") : "";
    return svg("path", {
      class: `${kind}${fresh}`,
      d: pathOf(pointer, plan),
      pathLength: 1,
      "marker-end": `url(#arrow-${pointer === last ? "newest" : "written"})`,
    });
  });
  $("g", layer).replaceChildren(...paths);
  newest = last;
}

/** Rows of nodes that are not encoded yet stand back. */
function dimRows() {
  const view = shownView();
  if (!view || view.step.index !== null) return; // a step's rows are the what-if ruler's
  for (const row of $$("tbody tr", handle("nodes"))) {
    const later = view.cut?.cut && Number(row.dataset.node) > view.cut.budget;
    row.toggleAttribute("data-beyond", Boolean(later));
  }
}

onTouch(["view", "size", "theme"], drawPointers);
onTouch(["view"], dimRows);
