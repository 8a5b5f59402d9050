// Figures as images: the whole tree of the step shown and every chart, as SVG or PNG, in the colours in force.

/* global Plotly */

import { $, $$, el, token } from "../core/dom.js";
import { setError, store } from "../core/store.js";
import { treeFigure } from "../panes/tree.js";
import { save } from "./files.js";

const SHARP = 2; // pixels of a PNG for each of the page

async function saveFigure({ data, layout }, format, name) {
  const { width, height } = layout;
  const figure = { data, layout: { ...layout, paper_bgcolor: token("--surface") }, config: { staticPlot: true } };
  try {
    const url = await Plotly.toImage(figure, { format, width, height, scale: format === "png" ? SHARP : 1 });
    const step = store.at < 0 ? "" : `-step-${store.at}`;
    save(url, `${store.run?.id ?? "pasted"}${step}-${name}.${format}`);
  } catch (fault) {
    setError({ message: `The image of the ${name} could not be made: ${fault.message ?? fault}` });
  }
}

/** Two small buttons; `figureOf()` gives the figure when one is pressed, or null while there is none. */
function buttons(name, words, figureOf) {
  const made = ["svg", "png"].map((format) => {
    const label = `Save the ${words} as ${format.toUpperCase()}`;
    const button = el(
      "button",
      { type: "button", class: "quiet image", title: label, "aria-label": label, data: { testid: `image-${name}-${format}` } },
      format.toUpperCase(),
    );
    button.addEventListener("click", () => {
      const figure = figureOf();
      if (figure) saveFigure(figure, format, name);
      else setError({ message: `There is no ${words} to save yet.` });
    });
    return button;
  });
  return el("span", { class: "btns images" }, ...made);
}

/** What a chart shows, at the size it has. */
const drawn = (host) =>
  host.data && { data: host.data, layout: { ...host.layout, width: host.clientWidth, height: host.clientHeight } };

$(".pane.tree .bar").append(buttons("tree", "draft tree", treeFigure));
for (const host of $$("figure > .chart")) {
  const name = host.id.replace("chart-", "");
  $("figcaption", host.parentElement).append(buttons(name, `chart “${name}”`, () => drawn(host)));
}
