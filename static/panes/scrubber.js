// The scrubber is the chart of committed tokens per step: a block per accepted draft, a hexagon for the bonus,
// a mark where a setting changed. It is a slider as well.

import { $, el, handle, px, token } from "../core/dom.js";
import { count, setting } from "../core/format.js";
import { onTouch, touch } from "../core/schedule.js";
import { goTo, setFollow, store } from "../core/store.js";
import { plotly, tok } from "../core/text.js";
import { colours, draw, textWidth } from "./plot.js";
import { Outlines, fills } from "./shapes.js";

const box = handle("scrubber");
const host = $(".host", box);

const TOP = 16; // px above the bars, for the names of changed settings
const FOOT = 20; // px below, for the step numbers
const WIDEST = 12; // px from bar to bar while there is room
const LEAST_BAR = 2; // px; with more steps than fit, a bar stands for several
const REST = 400; // ms between drawings while steps come
const LAYERS = [
  ["grid", "--grid"],
  ["here", "--accent"],
  ["tint", "--accent-tint"],
  ["accepted", "--accepted"],
  ["edge", "--bonus-edge"],
  ["bonus", "--bonus"],
  ["failed", "--rejected"],
  ["axis", "--line-strong"],
  ["change", "--ink-3"],
];

let scale = { pitch: WIDEST, each: 1 };
let look = null;
let last = 0;
let waiting = 0;

/** What a bar stands for: one step, or the mean of several. */
function barsOf(outlines, each) {
  const bars = [];
  for (let from = 0; from < outlines.length; from += each) {
    const some = outlines.slice(from, from + each).filter(Boolean);
    const mean = (pick) => some.reduce((sum, outline) => sum + pick(outline), 0) / Math.max(some.length, 1);
    bars.push({
      accepted: mean((o) => o.accepted),
      committed: mean((o) => o.committed),
      failed: some.some((o) => o.failed),
    });
  }
  return bars;
}

function drawBar(layers, bar, x, width, base, unit) {
  const blocks = width >= 4 && Number.isInteger(bar.accepted);
  if (blocks) {
    for (let k = 0; k < bar.accepted; k++)
      layers.accepted.rect(x, base - (k + 1) * unit + 1, width, unit - 1);
  } else if (bar.accepted > 0)
    layers.accepted.rect(x, base - bar.accepted * unit, width, bar.accepted * unit);
  const top = base - bar.committed * unit;
  const height = (bar.committed - bar.accepted) * unit;
  if (height > 0 && blocks) {
    layers.edge.hexagon(x - 0.5, top + 0.5, width + 1, height - 0.5, 2.8);
    layers.bonus.hexagon(x + 0.5, top + 1.25, width - 1, height - 2, 2.4);
  } else if (height > 0) layers.bonus.rect(x, top, width, height);
  if (bar.failed) layers.failed.cross(x + width / 2, base - 6, 7);
}

function changesOf(outlines) {
  return outlines
    .filter((outline) => outline?.changes?.length)
    .map((outline) => ({
      index: outline.index,
      what: outline.changes
        .map(({ name, from, to }) => `${name} ${setting(from)} → ${setting(to)}`)
        .join(", "),
    }));
}

function text(x, y, content, align, colour, weight = 400) {
  return { x, y, content: plotly(content), align, colour, weight };
}

function textTrace(texts) {
  return {
    uid: "texts",
    type: "scatter",
    mode: "text",
    x: texts.map((t) => t.x),
    y: texts.map((t) => t.y),
    text: texts.map((t) => t.content),
    textposition: texts.map((t) => `middle ${t.align}`),
    textfont: {
      family: look.mono,
      size: look.size,
      color: texts.map((t) => t.colour),
      weight: texts.map((t) => t.weight),
    },
    hoverinfo: "skip",
    cliponaxis: false,
  };
}

/** Dashed marks where a setting changed; a name only where it does not run into the one before. */
function drawChanges(layers, outlines, width, base, x) {
  let free = 0;
  const texts = [];
  for (const { index, what } of changesOf(outlines)) {
    const at = x(index);
    for (let y = 3; y < base; y += 4) layers.change.rect(at - 0.5, y, 1, 2);
    const shown = what.length > 60 ? `${what.slice(0, 59)}…` : what;
    const wide = textWidth(shown, `${look.size}px ${look.mono}`) + 10;
    const left = at + wide > width;
    if ((left ? at - wide : at) < free) continue;
    texts.push(text(at + (left ? -4 : 4), 7, shown, left ? "left" : "right", look.ink));
    free = left ? at : at + wide;
  }
  return texts;
}

function ticks(n, x, at, base) {
  const every =
    [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000].find(
      (step) => (step * scale.pitch) / scale.each >= 44,
    ) ?? 10000;
  const texts = [];
  for (let i = 0; i < n; i += every) {
    if (Math.abs(x(i) - x(at)) > 22) texts.push(text(x(i), base + 10, String(i), "center", look.quiet));
  }
  const room = 4 * String(at).length; // the label of the last step must not be cut off
  if (at >= 0)
    texts.push(
      text(
        Math.min(Math.max(x(at), room), host.clientWidth - room),
        base + 13,
        String(at),
        "center",
        look.ink,
        600,
      ),
    );
  return texts;
}

function drawPlot() {
  const { run } = store;
  const outlines = run?.outlines ?? [];
  const width = host.clientWidth;
  const height = px("--h-scrub");
  look ??= readLook();
  const n = outlines.length;
  const each = Math.max(1, Math.ceil((n * LEAST_BAR) / width));
  const pitch = Math.min(WIDEST, width / Math.max(Math.ceil(n / each), 1));
  scale = { pitch, each };
  const bars = barsOf(outlines, each);
  const base = height - FOOT;
  const most = Math.max(3, ...bars.map((bar) => bar.committed));
  const unit = Math.min(px("--scrub-unit"), (base - TOP) / most);
  const layers = Object.fromEntries(LAYERS.map(([name]) => [name, new Outlines()]));
  for (let y = 1; y <= most; y += 2) layers.grid.rect(0, Math.round(base - y * unit), width, 1);
  layers.axis.rect(0, base, width, 1);
  const barWidth = pitch > 4 ? pitch - Math.min(2.5, pitch / 4) : pitch;
  bars.forEach((bar, i) => drawBar(layers, bar, i * pitch + (pitch - barWidth) / 2, barWidth, base, unit));
  const middle = (index) => (Math.floor(index / each) + 0.5) * pitch;
  const at = store.pasted ? -1 : store.at;
  if (at >= 0) markHere(layers, middle(at), Math.max(pitch, 5), base, most * unit);
  const texts = [
    ...ticks(n, middle, at, base),
    ...drawChanges(layers, outlines, width, base, (index) => middle(index) - pitch / 2),
  ];
  draw(host, [...fills(LAYERS, layers, look.colours), textTrace(texts)], width, height);
}

function markHere(layers, x, pitch, base, high) {
  const top = base - high - 3;
  layers.here.round(x - pitch / 2 - 1, top, pitch + 2, base - top + 2, 2);
  layers.tint.round(x - pitch / 2, top + 1, pitch, base - top, 1.5);
  layers.here.polygon([
    [x - 4, base + 7],
    [x, base + 2],
    [x + 4, base + 7],
  ]);
}

function readLook() {
  return {
    colours: colours(LAYERS.map(([, name]) => name)),
    mono: token("--font-mono"),
    size: px("--fs-micro"),
    ink: token("--ink"),
    quiet: token("--ink-3"),
  };
}

function sentence(outline) {
  if (!outline) return "no steps yet";
  const bonus = outline.committed > outline.accepted ? " and the bonus" : "";
  return `Step ${outline.index}: ${count(outline.committed, "token")} committed, ${outline.accepted} accepted${bonus}`;
}

/** The tokens that the step committed, as the tree shows them. */
function chips(view) {
  if (!view?.committed) return [];
  const nodes = [...view.path.slice(1).map((n) => view.nodes[n]), view.bonus].slice(0, view.committed);
  return [
    el("span", { class: "lead" }, "commits"),
    ...nodes.map((node) => el("span", { class: `c ${node.origin}` }, tok(node.text))),
  ];
}

function drawHead() {
  const { run, at, pasted } = store;
  const newest = run?.newest ?? -1;
  const outline = run?.outlines[at];
  $("#stepno").textContent = pasted ? "–" : at < 0 ? "–" : at;
  $("#stepof").textContent = newest < 0 ? "" : `of ${newest}`;
  box.setAttribute("aria-valuemax", Math.max(newest, 0));
  box.setAttribute("aria-valuenow", Math.max(at, 0));
  box.setAttribute("aria-valuetext", sentence(outline));
  $("#committed").replaceChildren(...(pasted ? [] : chips(store.view)));
  $("#follow").setAttribute("aria-pressed", String(store.follow && !pasted));
  $("#follow").disabled = !run?.live;
  for (const [id, off] of [
    ["first", at <= 0],
    ["prev", at <= 0],
    ["next", at >= newest],
    ["last", at >= newest],
  ])
    $(`#${id}`).disabled = off;
  document.title = run && at >= 0 ? `Step ${at} · DDTree Scope` : "DDTree Scope";
}

/** While steps come, the chart is drawn in a frame of its own: the tree goes first. */
function drawLater() {
  if (waiting) return;
  waiting = setTimeout(
    () => {
      waiting = 0;
      touch("scrub");
    },
    Math.max(REST - (performance.now() - last), 30),
  );
}

function drawScrubber(changed) {
  drawHead();
  if (store.follow && store.run?.state === "running" && !changed.has("scrub")) return drawLater();
  if (changed.has("theme")) look = null;
  drawPlot();
  last = performance.now();
}

const indexAt = (event) =>
  Math.floor((event.clientX - host.getBoundingClientRect().left) / scale.pitch) * scale.each;
box.addEventListener("pointerdown", (event) => {
  if (event.button !== 0 || !store.run) return;
  box.setPointerCapture(event.pointerId);
  goTo(indexAt(event));
});
box.addEventListener("pointermove", (event) => {
  if (box.hasPointerCapture(event.pointerId) && indexAt(event) !== store.at) goTo(indexAt(event));
  else if (store.run) box.title = sentence(store.run.outlines[indexAt(event)]);
});
box.addEventListener("keydown", (event) => {
  const by = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, PageUp: 10, PageDown: -10 }[
    event.key
  ];
  if (by === undefined) return;
  event.preventDefault();
  event.stopPropagation();
  goTo(store.at + by);
});
$("#first").addEventListener("click", () => goTo(0));
$("#prev").addEventListener("click", () => goTo(store.at - 1));
$("#next").addEventListener("click", () => goTo(store.at + 1));
$("#last").addEventListener("click", () => goTo(Infinity, true));
$("#follow").addEventListener("click", () => setFollow(!store.follow));

onTouch(["steps", "view", "run", "theme", "size", "scrub"], drawScrubber);
