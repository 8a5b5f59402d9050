// The what-if ruler under the tree: nodes in the order they were added, over the tokens each budget emits.
// Moving its marker dims the nodes beyond in the tree, the table and the walk.

import { $, $$, el, handle, num } from "../core/dom.js";
import { count } from "../core/format.js";
import { onTouch } from "../core/schedule.js";
import { setWhatif, shownView, store } from "../core/store.js";
import { quoted } from "../core/text.js";
import { cutAt, segments } from "../core/whatif.js";

const slider = handle("whatif");
const ruler = slider.closest(".whatif");
const say = handle("whatif-says");
const out = $("#whatif-budget");
const strip = $("#whatif-segments");
let dimmed = false; // whether some are marked

/** The bonus token after a cut path: greedy, the path's own next token. */
function bonusText(view, found) {
  const next = view.path[found.path.length];
  return next !== undefined ? view.nodes[next].text : view.bonus.text;
}

function sentence(view, found) {
  const accepted = `${Math.min(found.path.length - 1, view.committed)} accepted`;
  if (!found.cut) {
    const enough = Math.max(...view.path);
    const spare = enough < view.size ? `; ${count(enough, "node")} would have done` : "";
    return [`as run: ${accepted}${spare}`];
  }
  if (found.emitted < found.path.length) return [accepted, ", cut by the end of the text"];
  if (!found.bonusKnown) return [accepted, "; the bonus would be another draw"];
  return [accepted, ", then the bonus ", quoted(bonusText(view, found))];
}

function drawSegments(view, found) {
  const at = (budget) => (100 * Math.min(Math.max(budget, 0), view.size)) / Math.max(view.size, 1);
  const bars = segments(view).map(({ from, to, emitted }) => {
    const left = from === 0 ? 0 : at(from - 0.5);
    const width = at(to === view.size ? to : to + 0.5) - left;
    const here = found.budget >= from && found.budget <= to;
    const label = width > 12 ? `emits ${emitted}` : width > 2 ? String(emitted) : "";
    return el("i", { class: here ? "on" : null, style: `left:${left}%;width:${width}%` }, label);
  });
  strip.replaceChildren(...bars);
}

/** Mark what lies beyond the marker in the table and the walk. */
function dim(view, found) {
  if (!found.cut && !dimmed) return; // thousands of rows that are as they should be
  dimmed = found.cut;
  for (const name of ["nodes", "verdicts"]) {
    for (const part of $$("[data-node]", handle(name))) {
      const { node } = part.dataset;
      const gone = node === "bonus" ? !found.bonusKnown : Number(node) > found.budget;
      part.toggleAttribute("data-beyond", Boolean(found.cut && gone));
    }
  }
}

function drawRuler() {
  const view = shownView();
  const walked = Boolean(view?.path.length && view.size && view.step.index !== null);
  ruler.toggleAttribute("data-empty", !walked);
  slider.disabled = !walked;
  if (!walked) {
    say.replaceChildren(view && view.step.index !== null ? "no tree to cut" : "");
    strip.replaceChildren();
    return;
  }
  const found = cutAt(view, store.whatif);
  slider.max = view.size;
  slider.value = found.budget;
  slider.setAttribute("aria-valuetext", `${count(found.budget, "node")}, emits ${found.emitted}`);
  out.replaceChildren(num(found.budget));
  ruler.dataset.emitted = found.emitted;
  say.replaceChildren(...sentence(view, found));
  say.title = say.textContent;
  drawSegments(view, found);
  dim(view, found);
}

slider.addEventListener("input", () => {
  const budget = Number(slider.value);
  setWhatif(budget >= shownView().size ? null : budget);
});
onTouch(["view", "whatif"], drawRuler);
