// Is it lossless? A check of the step shown: started, watched every second, cancelled; its figures are the
// server's. What was found stays with its step for as long as the page lives.

import { $, el, handle, num, token } from "../core/dom.js";
import { askCheck, cancelCheck, startCheck } from "../core/api.js";
import { count, fixed } from "../core/format.js";
import { onTouch, touch } from "../core/schedule.js";
import { store } from "../core/store.js";
import { cut, parts, plotly, quoted } from "../core/text.js";
import { chart } from "../panes/chart.js";

const dialog = handle("lossless-dialog");
const draws = handle("lossless-draws");
const POLL = 1000; // ms
const FIRST = 250; // ms: a short check answers at once
const BARS = 24; // categories in a histogram
const LEAST_P = 1e-3; // below it a right sampler would fall in one of a thousand checks
const PHASES = {
  context: "reading the text before the step",
  rows: "scoring the tree, and plain passes",
  draws: "draws",
  plain: "plain decoding, token",
};

const found = new Map(); // "run step" -> the check as the server last told it
let fault = null; // {key, message}: why it was not started

const keyOf = () => `${store.run.id} ${store.at}`;
const live = (check) => check?.state === "waiting" || check?.state === "running";

async function watch(key, id) {
  for (let wait = FIRST; ; wait = POLL) {
    await new Promise((resolve) => setTimeout(resolve, wait));
    try {
      found.set(key, await askCheck(id));
    } catch (error) {
      fault = { key, message: `The check could not be asked after: ${error.message}` };
      if (error.status) found.delete(key);
    }
    touch("lossless");
    if (!live(found.get(key))) return;
  }
}

async function start() {
  const key = keyOf();
  fault = null;
  try {
    const check = await startCheck(store.run.id, store.at, { draws: Number(draws.value) });
    found.set(key, check);
    watch(key, check.id);
  } catch (error) {
    found.delete(key);
    fault = { key, message: error.message };
  }
  touch("lossless");
}

async function cancel() {
  const key = keyOf();
  found.set(key, await cancelCheck(found.get(key).id).catch(() => ({ ...found.get(key), state: "cancelled" })));
  touch("lossless");
}

// ---- what was found ----

const pWords = (p) => (p === null ? "one category: nothing to tell apart" : p < 1e-6 ? "p below 1e-6" : `p ${Number(p.toPrecision(3))}`);

function fitWords(fit) {
  const what = fit.after === null ? ["First token"] : ["Second token after ", quoted(fit.after_text)];
  const ok = fit.p_value === null || fit.p_value >= LEAST_P;
  return {
    ok,
    words: [
      ...what,
      `, ${count(fit.draws, "draw")} in ${count(fit.count, "category", "categories")}: `,
      el("b", { class: "word" }, ok ? "as the target’s row" : "not as the target’s row"),
      ". Total variation ",
      num(fixed(fit.total_variation, 4)),
      ", expected noise ",
      num(fixed(fit.expected_variation, 4)),
      "; chi-square ",
      num(fixed(fit.chi_square, 1)),
      ` on ${fit.degrees}, `,
      num(pWords(fit.p_value)),
      fit.impossible ? `; ${count(fit.impossible, "draw")} of tokens without probability` : "",
    ],
  };
}

const short = (text) =>
  plotly(
    cut(parts(text), 9)
      .map((part) => part.text)
      .join(""),
  );

function histogram(fit, host) {
  const bars = fit.categories.slice(0, BARS);
  const names = bars.map((one) => (one.token_id === null ? `${one.tokens} rare` : short(one.text)));
  const x = bars.map((_, i) => i);
  const sd = (one) => Math.sqrt(one.expected * Math.max(1 - one.expected / fit.draws, 0));
  chart(
    host,
    [
      { type: "bar", name: "drawn", x, y: bars.map((one) => one.observed), marker: { color: token("--accepted") } },
      {
        type: "scatter",
        mode: "markers",
        name: "expected, ± 2 sd",
        x,
        y: bars.map((one) => one.expected),
        marker: { symbol: "line-ew", size: 16, line: { color: token("--ink"), width: 2 } },
        error_y: { type: "data", array: bars.map((one) => 2 * sd(one)), color: token("--ink"), thickness: 1.2, width: 4 },
      },
    ],
    {
      x: { tickvals: x, ticktext: names, showgrid: false, tickangle: -35 },
      y: { title: "draws", rangemode: "tozero" },
      words: bars.map((one, i) => `${names[i]}: ${one.observed} drawn, ${fixed(one.expected, 1)} expected`).join("; "),
      legend: "top",
    },
  );
}

function drawSampler(fits) {
  $("#lossless-sampler").hidden = fits.length === 0;
  for (const i of [0, 1]) {
    const figure = $(`[data-fit="${i}"]`, dialog);
    figure.hidden = !fits[i];
    if (!fits[i]) continue;
    const { ok, words } = fitWords(fits[i]);
    figure.dataset.ok = ok ? "yes" : "no";
    $("figcaption", figure).replaceChildren(...words);
    histogram(fits[i], $(`#chart-lossless-${i}`));
  }
}

function drawGreedy(greedy) {
  const section = $("#lossless-greedy");
  section.hidden = !greedy;
  if (!greedy) return;
  const said = handle("lossless-greedy");
  section.dataset.ok = greedy.place === null ? "yes" : "no";
  const equal = [el("b", { class: "word" }, "equal"), `: ${count(greedy.compared, "token")} from this step on, one by one, are plain decoding’s.`];
  const apart = () => [
    el("b", { class: "word" }, "another"),
    `: after ${count(greedy.compared, "equal token")} the run has `,
    quoted(greedy.committed_text),
    ", plain decoding ",
    quoted(greedy.plain_text),
    ", whose logit is higher by ",
    num(fixed(greedy.margin, 4)),
    ".",
  ];
  said.replaceChildren(...(greedy.place === null ? equal : apart()));
}

function drawRows(rows) {
  const lines = rows.map((row) =>
    el(
      "tr",
      { data: { row: row.node } },
      el("th", { scope: "row" }, row.node === 0 ? "the root" : `node ${row.node}`),
      el("td", { class: "r" }, row.largest === 0 ? "0" : row.largest.toExponential(2)),
      el("td", { class: "tok" }, row.largest === 0 ? "" : quoted(row.text)),
      el("td", { class: "r" }, row.total_variation === 0 ? "0" : row.total_variation.toExponential(2)),
    ),
  );
  $("tbody", handle("lossless-rows")).replaceChildren(...lines);
  const same = rows.every((row) => row.largest === 0);
  $("#lossless-rounding").textContent = same
    ? "The tree’s rows are those of plain passes to the last bit."
    : `A pass of many rows adds its products up in another order than a pass of one: a difference of rounding in ${store.run.head.engine.dtype}, not of the method.`;
}

function drawProgress(check) {
  const bar = $("#lossless-bar");
  const share = check?.total ? check.done / check.total : 0;
  bar.hidden = !live(check);
  bar.setAttribute("aria-valuenow", Math.round(100 * share));
  $("i", bar).style.width = `${100 * share}%`;
  const words = {
    waiting: () => "waiting for its turn",
    running: () => (check.phase ? `${PHASES[check.phase]} ${check.done} of ${check.total}, ${fixed(check.seconds, 0)} s` : "beginning"),
    done: () => `done in ${fixed(check.seconds, 1)} s, seed ${check.seed}`,
    failed: () => "",
    cancelled: () => "cancelled",
  };
  handle("lossless-progress").textContent = check ? words[check.state]() : "";
}

function drawDialog() {
  handle("lossless-open").disabled = !store.view || store.tab !== "step";
  if (!dialog.open || !store.run) return;
  const key = keyOf();
  const check = found.get(key);
  const settings = store.view?.step.settings;
  $("#lossless-facts").textContent = settings ? `step ${store.at}, temperature ${settings.temperature}` : "";
  handle("lossless-start").hidden = live(check);
  handle("lossless-cancel").hidden = !live(check);
  draws.disabled = live(check);
  drawProgress(check);
  const wrong = handle("lossless-error");
  const message = fault?.key === key ? fault.message : check?.state === "failed" ? check.message : null;
  wrong.hidden = !message;
  wrong.textContent = message ?? "";
  const result = check?.state === "done" ? check.result : null;
  $("#lossless-result").hidden = !result;
  if (!result) return;
  drawSampler(result.sampler);
  drawGreedy(result.greedy);
  drawRows(result.rows);
}

export function startLossless() {
  handle("lossless-open").addEventListener("click", () => {
    dialog.showModal();
    touch("lossless");
  });
  handle("lossless-start").addEventListener("click", start);
  handle("lossless-cancel").addEventListener("click", cancel);
  onTouch(["lossless", "view", "tab", "theme"], drawDialog);
}
