// Coins: the pin of a step's coin on its interval, and in the Inspector a pin that can be dragged.

import { el, handle } from "../core/dom.js";
import { coinAt, moveCoin } from "../core/inspect.js";
import { afterDrawing, onTouch } from "../core/schedule.js";

const box = handle("verdicts");
const STEPS = { ArrowLeft: -0.01, ArrowRight: 0.01, ArrowDown: -0.01, ArrowUp: 0.01, PageDown: -0.1, PageUp: 0.1 };
const ENDS = { Home: 0, End: 1 };

let drag = null; // {place, left, width}: the interval as it stood when the coin was taken up
let held = null; // the coin that has the focus, to be given back when the walk is drawn anew

const placeOf = (pin) => (pin.dataset.coin === "final" ? "final" : Number(pin.dataset.coin));

/** The pin of node `place`'s coin, or of the "final" one. */
export function coinPin(view, place, coin) {
  const what = place === "final" ? "the final coin" : `the coin of node ${place}`;
  const props = {
    class: "coin",
    style: `left:${(100 * coin).toFixed(3)}%`,
    title: `${what}: ${coin}`,
    "data-testid": `coin-${place}`,
  };
  if (!view.movable) return el("i", props);
  return el("i", {
    ...props,
    class: "coin drag",
    role: "slider",
    tabindex: 0,
    "aria-label": what,
    "aria-valuemin": 0,
    "aria-valuemax": 1,
    "aria-valuenow": coin.toFixed(4),
    data: { coin: place },
  });
}

box.addEventListener("pointerdown", (event) => {
  const pin = event.target.closest(".coin.drag");
  held = null;
  if (!pin || event.button !== 0) return;
  event.preventDefault();
  const { left, width } = pin.parentElement.getBoundingClientRect();
  drag = { place: placeOf(pin), left, width };
  pin.focus();
});
addEventListener("pointermove", (event) => {
  if (!drag) return;
  const coin = (event.clientX - drag.left) / drag.width;
  const pin = handle(`coin-${drag.place}`);
  if (pin) pin.style.left = `${(100 * Math.min(Math.max(coin, 0), 1)).toFixed(3)}%`;
  moveCoin(drag.place, coin);
});
for (const end of ["pointerup", "pointercancel"]) addEventListener(end, () => (drag = null));

box.addEventListener("keydown", (event) => {
  const pin = event.target.closest?.(".coin.drag");
  if (!pin || event.altKey || event.ctrlKey || event.metaKey) return;
  const by = STEPS[event.key] === undefined ? undefined : STEPS[event.key] * (event.shiftKey ? 0.1 : 1);
  if (by === undefined && ENDS[event.key] === undefined) return;
  event.preventDefault();
  event.stopImmediatePropagation(); // the lines of the walk take Home and End for themselves
  const place = placeOf(pin);
  moveCoin(place, by === undefined ? ENDS[event.key] : coinAt(place) + by);
});
document.addEventListener("focusin", ({ target }) => {
  held = target.matches(".coin.drag") ? placeOf(target) : null;
});
onTouch(["view"], () =>
  afterDrawing(() => {
    if (held !== null && document.activeElement === document.body) handle(`coin-${held}`)?.focus();
  }),
);
