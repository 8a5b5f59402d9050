// Lines between panes that can be moved, by pointer and by arrows: how much of the screen each takes is the
// reader's, and is remembered.

import { $, $$ } from "../core/dom.js";
import { stored, storing } from "../core/memory.js";
import { touch } from "../core/schedule.js";

const KEY = "ddtree-layout";
const NUDGE = 16; // px, one press of an arrow
const root = document.documentElement.style;

const AXES = {
  horizontal: {
    least: 64,
    most: () => Math.round(innerHeight * 0.8),
    size: (pane) => pane.offsetHeight,
    at: (event) => event.clientY,
    arrows: { ArrowUp: -NUDGE, ArrowDown: NUDGE },
  },
  vertical: {
    least: 220,
    most: () => Math.round(innerWidth * 0.36),
    size: (pane) => pane.offsetWidth,
    at: (event) => event.clientX,
    arrows: { ArrowLeft: -NUDGE, ArrowRight: NUDGE },
  },
};

function remember(property, value) {
  const { [property]: _, ...rest } = stored(KEY) ?? {};
  storing(KEY, value === null ? rest : { ...rest, [property]: value });
}

function connect(line) {
  const { property, side } = line.dataset;
  const pane = $(line.dataset.pane);
  const axis = AXES[line.getAttribute("aria-orientation")];
  const sign = side === "right" ? -1 : 1;
  const say = () => {
    line.setAttribute("aria-valuemin", axis.least);
    line.setAttribute("aria-valuemax", axis.most());
    line.setAttribute("aria-valuenow", axis.size(pane));
  };
  const set = (size) => {
    const value = Math.round(Math.min(Math.max(size, axis.least), axis.most()));
    root.setProperty(property, `${value}px`);
    remember(property, value);
    say();
    touch("size");
  };
  const before = (stored(KEY) ?? {})[property];
  if (Number.isFinite(before)) root.setProperty(property, `${Math.min(Math.max(before, axis.least), axis.most())}px`);
  say();
  line.addEventListener("pointerdown", (event) => {
    line.setPointerCapture(event.pointerId);
    line.dataset.from = axis.size(pane) - sign * axis.at(event);
  });
  line.addEventListener("pointermove", (event) => {
    if (line.hasPointerCapture(event.pointerId)) set(Number(line.dataset.from) + sign * axis.at(event));
  });
  const reset = () => {
    root.removeProperty(property);
    remember(property, null);
    say();
    touch("size");
  };
  line.addEventListener("dblclick", reset);
  line.addEventListener("keydown", (event) => {
    if (event.key === "Delete") return reset();
    const by = axis.arrows[event.key];
    if (by === undefined) return;
    event.preventDefault();
    set(axis.size(pane) + sign * by);
  });
}

$$(".split").forEach(connect);
