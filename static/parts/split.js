// Lines between panes that can be moved, by pointer and by arrows: how much of the screen the tree and the
// walk take is the reader's.

import { $, $$ } from "../core/dom.js";
import { touch } from "../core/schedule.js";

const LEAST = 64; // px
const NUDGE = 16; // px, one press of an arrow

function connect(line) {
  const { property } = line.dataset;
  const pane = $(line.dataset.pane);
  const set = (height) => {
    const most = innerHeight * 0.8;
    document.documentElement.style.setProperty(
      property,
      `${Math.round(Math.min(Math.max(height, LEAST), most))}px`,
    );
    line.setAttribute("aria-valuenow", pane.offsetHeight);
    touch("size");
  };
  line.setAttribute("aria-valuemin", LEAST);
  line.setAttribute("aria-valuemax", Math.round(innerHeight * 0.8));
  line.setAttribute("aria-valuenow", pane.offsetHeight);
  line.addEventListener("pointerdown", (event) => {
    line.setPointerCapture(event.pointerId);
    line.dataset.from = pane.offsetHeight - event.clientY;
  });
  line.addEventListener("pointermove", (event) => {
    if (line.hasPointerCapture(event.pointerId)) set(Number(line.dataset.from) + event.clientY);
  });
  line.addEventListener("dblclick", () => {
    document.documentElement.style.removeProperty(property);
    touch("size");
  });
  line.addEventListener("keydown", (event) => {
    const by = { ArrowUp: -NUDGE, ArrowDown: NUDGE }[event.key];
    if (by === undefined) return;
    event.preventDefault();
    set(pane.offsetHeight + by);
  });
}

$$(".split").forEach(connect);
