// Plotly with everything of its own switched off: one data unit is one pixel, no axes, no hover, no drag.

/* global Plotly */

import { token } from "../core/dom.js";

const CONFIG = { staticPlot: true, displayModeBar: false, responsive: false };

/** A layout of so many pixels. */
export function layoutOf(width, height) {
  const axis = { visible: false, fixedrange: true, autorange: false };
  return {
    width,
    height,
    margin: { l: 0, r: 0, t: 0, b: 0, pad: 0 },
    paper_bgcolor: "transparent",
    plot_bgcolor: "transparent",
    xaxis: { ...axis, range: [0, width] },
    yaxis: { ...axis, range: [height, 0] },
    showlegend: false,
    hovermode: false,
    dragmode: false,
  };
}

/** Draw traces into an element, which keeps its one plot for good. */
export function draw(host, traces, width, height) {
  Plotly.react(host, traces, layoutOf(width, height), CONFIG);
}

/** Values of design tokens by name; read again when the theme changes. */
export const colours = (names) => Object.fromEntries(names.map((name) => [name, token(name)]));

const context = document.createElement("canvas").getContext("2d");
const known = new Map();

/** The width of a text in pixels, in a CSS font. */
export function textWidth(text, font) {
  const key = font + text;
  let width = known.get(key);
  if (width === undefined) {
    if (known.size > 20000) known.clear();
    context.font = font;
    width = context.measureText(text).width;
    known.set(key, width);
  }
  return width;
}
