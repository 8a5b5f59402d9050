// Charts with axes, in the page's own type and colours; nothing to drag, and no menu.

/* global Plotly */

import { px, token } from "../core/dom.js";

const CONFIG = { staticPlot: true, displayModeBar: false, responsive: false };

const font = (colour) => ({ family: token("--font-ui"), size: px("--fs-micro"), color: token(colour) });

function axis(title, more) {
  return {
    title: { text: title, font: font("--ink-2"), standoff: 6 },
    tickfont: font("--ink-3"),
    gridcolor: token("--grid"),
    linecolor: token("--line-strong"),
    zeroline: false,
    fixedrange: true,
    automargin: true,
    ...more,
  };
}

/**
 * Draw traces into an element, which keeps its one plot, and say them in words to those who cannot see it.
 * @param {{x: object, y: object, words: string, legend?: "top" | "bottom", shapes?: object[],
 *   annotations?: object[]}} form axes: {title, ...}; where the legend stands
 */
export function chart(host, traces, { x, y, words, legend, shapes = [], annotations = [] }) {
  host.setAttribute("aria-label", words);
  const { title: titleX, ...moreX } = x;
  const { title: titleY, ...moreY } = y;
  Plotly.react(
    host,
    traces,
    {
      width: host.clientWidth,
      height: host.clientHeight,
      margin: { l: 36, r: 10, t: 8, b: 32 },
      paper_bgcolor: "transparent",
      plot_bgcolor: "transparent",
      font: font("--ink-2"),
      xaxis: axis(titleX, moreX),
      yaxis: axis(titleY, moreY),
      showlegend: Boolean(legend),
      legend: {
        x: 1,
        y: legend === "bottom" ? 0 : 1,
        xanchor: "right",
        yanchor: legend ?? "top",
        font: font("--ink-2"),
        bgcolor: token("--veil"),
      },
      hovermode: false,
      shapes,
      annotations: annotations.map((one) => ({ showarrow: false, font: font("--ink"), ...one })),
    },
    CONFIG,
  );
}

/** A vertical line over the whole chart, in blue: the marker. */
export const upright = (at) => ({
  type: "line",
  x0: at,
  x1: at,
  yref: "paper",
  y0: 0,
  y1: 1,
  line: { color: token("--accent"), width: 1.5 },
});
