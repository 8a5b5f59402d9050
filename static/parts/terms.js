// Definitions where the words stand: an element with data-term shows what its word means when it is pointed
// at, touched or focused; Escape puts it away.

import { $, el, handle } from "../core/dom.js";
import { TERMS } from "../core/terms.js";

const REST = 350; // ms of pointing before a definition appears
const GAP = 6; // px

const tip = $("#tip");
let timer = 0;
let at = null;

function hide() {
  clearTimeout(timer);
  tip.hidden = true;
  at?.removeAttribute("aria-describedby");
  at = null;
}

function show(element) {
  const words = TERMS[element.dataset.term];
  if (!words) return;
  hide();
  at = element;
  element.setAttribute("aria-describedby", "tip");
  tip.replaceChildren(el("b", {}, element.dataset.term), " ", words);
  tip.hidden = false;
  const box = element.getBoundingClientRect();
  const left = Math.min(Math.max(box.left, GAP), innerWidth - tip.offsetWidth - GAP);
  const below = box.bottom + GAP + tip.offsetHeight < innerHeight;
  tip.style.left = `${left}px`;
  tip.style.top = `${below ? box.bottom + GAP : box.top - GAP - tip.offsetHeight}px`;
}

const termOf = (event) => event.target.closest?.("[data-term]");

addEventListener("pointerover", (event) => {
  if (event.target.closest?.("#tip")) return clearTimeout(timer); // it may be pointed at itself
  const element = termOf(event);
  if (element === at && at) return clearTimeout(timer);
  clearTimeout(timer);
  if (element) timer = setTimeout(() => show(element), REST);
  else if (at) timer = setTimeout(hide, REST);
});
addEventListener("pointerdown", (event) => {
  const element = termOf(event);
  if (event.pointerType === "touch" && element) show(element);
  else hide();
});
addEventListener("focusin", (event) => {
  const element = termOf(event);
  if (element && event.target.matches(":focus-visible")) show(element);
  else hide();
});
addEventListener("keydown", (event) => event.key === "Escape" && !tip.hidden && hide(), true);
addEventListener("scroll", () => at && hide(), true);

handle("terms").replaceChildren(
  ...Object.entries(TERMS).map(([word, words]) => el("div", {}, el("dt", {}, word), el("dd", {}, words))),
);
