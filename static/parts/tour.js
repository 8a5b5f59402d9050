// Five stops for whoever comes the first time. Nothing waits for it: the page works behind it, Escape or Skip
// ends it, and it comes back only when it is asked for (in the help, or with ?tour in the address).

import { $, el, handle } from "../core/dom.js";
import { stored, storing } from "../core/memory.js";
import { onTouch } from "../core/schedule.js";
import { setTab } from "../core/store.js";

const KEY = "ddtree-tour";
const GAP = 10; // px between a stop and its card

const STOPS = [
  [".rail.left", "Ask and steer", "Type a prompt and run it. Sampling, method and budget may change while it decodes: the next step obeys. Settings with a lock wait for the next run."],
  [".pane.tree", "The draft tree", "Each step drafts a tree. Fill says what became of a node: solid accepted, hollow rejected, a hairline never tried. Shape says who proposed it. T and the arrows walk through it."],
  [".pane.walk", "The walk", "One interval for each coin: where it falls is the verdict. The target’s probabilities lie side by side in the order the children are tried."],
  [".pane.text", "What came of it", "Every token with its origin; a click shows its step. Below: speed, tokens a step, and where the time went. The bars above the tree go to any step."],
  [".tabs", "Other views", "What smaller budgets would have given, where acceptance comes from, races between settings. Press ? for all keys and what every word means."],
];

const tour = handle("tour");
const ring = $("#tour-ring");
let stop = -1;

function place() {
  const target = $(STOPS[stop][0]);
  const box = target.getBoundingClientRect();
  Object.assign(ring.style, {
    left: `${box.left}px`,
    top: `${box.top}px`,
    width: `${box.width}px`,
    height: `${box.height}px`,
  });
  const [w, h] = [tour.offsetWidth, tour.offsetHeight];
  const places = [
    [box.right + GAP, box.top],
    [box.left - GAP - w, box.top],
    [box.left, box.bottom + GAP],
    [box.left, box.top - GAP - h],
    [box.left + GAP, box.bottom - GAP - h],
  ];
  const fits = ([x, y]) => x >= 0 && y >= 0 && x + w <= innerWidth && y + h <= innerHeight;
  const [x, y] = places.find(fits) ?? [GAP, innerHeight - h - GAP];
  tour.style.left = `${Math.max(x, GAP)}px`;
  tour.style.top = `${Math.max(y, GAP)}px`;
}

function show(index) {
  stop = index;
  const [selector, title, words] = STOPS[stop];
  $(selector).scrollIntoView({ block: "nearest" });
  $("h2", tour).textContent = title;
  $("p", tour).textContent = words;
  handle("tour-at").textContent = `${stop + 1} of ${STOPS.length}`;
  handle("tour-back").disabled = stop === 0;
  handle("tour-next").textContent = stop === STOPS.length - 1 ? "Done" : "Next";
  tour.hidden = ring.hidden = false;
  place();
}

function end() {
  stop = -1;
  tour.hidden = ring.hidden = true;
  storing(KEY, "seen");
}

export function takeTour() {
  $("#help-dialog").close();
  setTab("step");
  show(0);
  handle("tour-next").focus();
}

handle("tour-next").addEventListener("click", () => (stop === STOPS.length - 1 ? end() : show(stop + 1)));
handle("tour-back").addEventListener("click", () => show(stop - 1));
handle("tour-skip").addEventListener("click", end);
handle("take-tour").addEventListener("click", takeTour);
addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || stop < 0) return;
  event.preventDefault();
  end();
});
onTouch(["size"], () => stop >= 0 && place());

const asked = new URLSearchParams(location.search).has("tour");
if (asked || (stored(KEY) !== "seen" && !navigator.webdriver && innerWidth > 800)) takeTour();
