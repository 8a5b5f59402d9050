// The table of a step's nodes: the retrieve arrays, log-weights, probabilities and coins. Rows are kept and
// rewritten, so that a step costs no new elements.

import { $, el, handle, icon, num, px, roving, setText } from "../core/dom.js";
import { NONE, fixed, prob } from "../core/format.js";
import { afterDrawing, onSettled, onTouch } from "../core/schedule.js";
import { passing, shownView, store } from "../core/store.js";
import { tok } from "../core/text.js";
import { ORIGINS, VERDICTS, verdictMark } from "./card.js";
import { link, onHot, remark } from "./link.js";

const table = handle("nodes");
const body = $("tbody", table);
const wrap = table.parentElement;
const rows = [];
let stale = null; // the view whose rows are not all written yet
let seen = { top: 0, height: Infinity, row: 1 };

const COLUMNS = [
  "token_id",
  "parent",
  "depth",
  "rank",
  "logWeight",
  "draft",
  "prob",
  "next_token",
  "next_sibling",
  "coin",
];
const CODE = new Set(["next_token", "next_sibling"]);

function newRow(n) {
  const head = el("th", { scope: "row", class: "r" }, String(n));
  const token = el("td", { class: "tok" });
  const cells = COLUMNS.map(() => el("td", { class: "r" }));
  const verdict = el("td", { class: "verdict" });
  return {
    tr: el("tr", { tabindex: -1, data: { node: n } }, head, token, ...cells, verdict),
    token,
    cells,
    verdict,
    shown: {},
  };
}

function figures(node) {
  const draft = node.draftLogProb == null ? null : Math.exp(node.draftLogProb);
  return {
    token_id: node.token_id ?? NONE,
    parent: node.lost ? NONE : node.parent,
    depth: node.depth,
    rank: node.rank ?? NONE,
    logWeight: node.n === 0 ? fixed(0) : fixed(node.logWeight),
    draft: node.n === 0 ? NONE : prob(draft),
    prob: node.n === 0 ? NONE : prob(node.prob),
    next_token: node.next_token ?? NONE,
    next_sibling: node.next_sibling ?? NONE,
    coin: fixed(node.coin),
  };
}

const kindsOf = (node) => [...new Set(node.faults.map((fault) => fault.kind.replaceAll("_", " ")))].join(", ");

function fillRow(row, node, visited) {
  const { tr, token, cells, verdict, shown } = row;
  const values = figures(node);
  COLUMNS.forEach((name, i) => {
    const text = String(values[name]);
    setText(cells[i], text);
    const quiet = text === NONE || ((CODE.has(name) || name === "parent") && text === "-1");
    const used = name === "coin" && visited;
    const wrote = node.wrote === name ? " wrote" : "";
    const className = `r${quiet || (name === "coin" && !visited) ? " none" : ""}${used ? " used" : ""}${wrote}`;
    if (cells[i].className !== className) cells[i].className = className;
  });
  if (shown.text !== node.text || shown.origin !== node.origin) {
    tr.dataset.origin = node.origin;
    token.replaceChildren(
      el("i", { class: `ngm ${node.origin}`, title: `origin: ${ORIGINS[node.origin]}` }),
      node.text == null ? NONE : tok(node.text),
    );
  }
  if (shown.verdict !== node.verdict || shown.faults !== node.faults) {
    const marks = node.faults
      ? [el("span", { class: "faulty", title: node.faults.map((f) => f.message).join("; ") }, icon("warn"), kindsOf(node))]
      : [verdictMark(node.verdict), VERDICTS[node.verdict].words];
    verdict.replaceChildren(...marks);
    tr.className = node.verdict;
  }
  row.shown = { text: node.text, origin: node.origin, verdict: node.verdict, faults: node.faults };
}

/** Write the rows of the view; of one that passes by, those that can be seen. */
function fill(onlySeen) {
  if (!stale) return;
  const { nodes, visited, step } = stale;
  const tossed = step.sampling?.rule === "target_only"; // greedy coins decide nothing
  const first = onlySeen ? Math.floor(seen.top / seen.row) - 1 : 0;
  const last = onlySeen ? Math.ceil((seen.top + seen.height) / seen.row) + 1 : nodes.length;
  for (const node of nodes.slice(Math.max(first, 0), last))
    fillRow(rows[node.n], node, tossed && visited.has(node.n));
  if (!onlySeen) stale = null;
}

function look() {
  seen = { top: wrap.scrollTop, height: wrap.clientHeight, row: px("--h-row") };
}

function drawNodes() {
  const view = shownView();
  const nodes = view?.nodes ?? [];
  while (rows.length < nodes.length) rows.push(newRow(rows.length));
  stale = view;
  fill(passing());
  const present = body.rows.length;
  if (present < nodes.length) body.append(...rows.slice(present, nodes.length).map((row) => row.tr));
  for (let i = present - 1; i >= nodes.length; i--) rows[i].tr.remove();
  table.toggleAttribute("data-empty", nodes.length === 0);
  $("#nodeblank").hidden = nodes.length > 0;
  $("#copy").disabled = !view?.step.retrieve;
  $("#nodefacts").replaceChildren(...(view?.step.retrieve ? facts(view) : []));
  remark();
}

function facts(view) {
  const offset = view.step.retrieve.retrieve_index[0];
  if (offset === undefined) return ["retrieve_index not given"];
  return offset === 0 ? ["retrieve_index = node"] : ["retrieve_index = node + ", num(offset)];
}

function copyArrays() {
  const { retrieve } = shownView().step;
  const label = $("span", $("#copy"));
  const say = (text) => {
    label.textContent = text;
    setTimeout(() => (label.textContent = "Copy arrays"), 1500);
  };
  navigator.clipboard.writeText(JSON.stringify(retrieve)).then(
    () => say("Copied"),
    () => say("Not allowed"),
  );
}

/** Bring a row into view inside the table only: the page itself must not jump under the pointer. */
function reveal(n) {
  const row = rows[n]?.tr;
  if (!row?.isConnected) return;
  const head = table.tHead.offsetHeight;
  if (row.offsetTop - head < wrap.scrollTop) wrap.scrollTop = row.offsetTop - head;
  else if (row.offsetTop + row.offsetHeight > wrap.scrollTop + wrap.clientHeight) {
    wrap.scrollTop = row.offsetTop + row.offsetHeight - wrap.clientHeight;
  }
}

$("#copy").addEventListener("click", copyArrays);
link(body);
roving(wrap, "tbody tr");
wrap.addEventListener("keydown", (event) => {
  if (event.target !== wrap || event.key !== "Enter") return;
  rows[store.selected === "bonus" ? 0 : store.selected]?.tr.focus();
});
onHot((n, source) => (source === "tree" || source === "keys") && reveal(n));
wrap.addEventListener("scroll", () => {
  look();
  fill(true);
});
onSettled(() => fill(false));
onTouch(["size"], () => afterDrawing(look));
onTouch(["view"], drawNodes);
onTouch(["node"], () => afterDrawing(() => reveal(store.selected)));
