// The Inspector's own pane above the tree: what was read and what it lacks, every fault, the encoding step by
// step, the target's probabilities for a walk with one's own coins; acceptance records as a chart.

import { $, el, handle, icon, num } from "../core/dom.js";
import { count, fixed } from "../core/format.js";
import { goToTree, inspected, newCoins, setEncode, setProbs } from "../core/inspect.js";
import { onTouch } from "../core/schedule.js";
import { selectNode, store } from "../core/store.js";
import { openPaste } from "../parts/paste.js";
import { drawDepths } from "./analysis-acceptance.js";
import { link, remark } from "./link.js";

const pane = handle("inspect");
const slider = handle("encode");
const field = handle("inspect-probs");
const list = handle("faults");
const PLAY = 900; // ms for a pointer
const KINDS = {
  topk: "top-k rows",
  arrays: "retrieve arrays",
  tree: "parents and tokens",
  rounds: "rounds of trees",
  acceptance: "acceptance records",
};

let playing = 0;

function drawHead({ found, tree }) {
  const facts = found ? [`${KINDS[found.kind]}, read as ${found.written_as}`] : [];
  if (found?.acceptance && found.kind !== "acceptance") facts.push(pathsOf(found.acceptance));
  $("#inspect-facts").textContent = facts.join(" · ");
  const many = (found?.trees ?? 0) > 1;
  $("#inspect-trees").hidden = !many;
  if (!many) return;
  $("#inspect-tree").textContent = `${tree.index + 1} of ${found.trees}`;
  handle("inspect-prev").disabled = tree.index === 0;
  handle("inspect-next").disabled = tree.index === found.trees - 1;
}

const pathsOf = ({ accepted, steps, source }) =>
  `${fixed(accepted / steps, 2)} accepted drafts over ${count(steps, source.replace(/s$/, ""))}`;

function drawMissing({ found }) {
  const parts = [];
  if (found.missing.length) parts.push(`Not given: ${found.missing.join(", ")}.`);
  if (found.ignored.length) parts.push(`Not read: ${found.ignored.join(", ")}.`);
  handle("inspect-missing").textContent = parts.join(" ");
}

function drawFaults({ tree }) {
  const faults = tree?.faults ?? [];
  handle("inspect-verdict").replaceChildren(
    ...(faults.length
      ? [icon("warn"), num(faults.length), faults.length === 1 ? " fault" : " faults"]
      : [icon("check"), "no faults: the arrays describe a tree"]),
  );
  handle("inspect-verdict").dataset.state = faults.length ? "faulty" : "sound";
  list.replaceChildren(
    ...faults.map((fault) =>
      el(
        "li",
        { data: { node: fault.node, kind: fault.kind } },
        el("button", { type: "button", class: "quiet" }, `node ${fault.node}`),
        el("b", {}, fault.kind.replaceAll("_", " ")),
        ` ${fault.message}`,
      ),
    ),
  );
  list.hidden = faults.length === 0;
  remark();
}

function sentence({ tree, encode }) {
  if (encode === null) return `${count(tree.encoding.length, "pointer")} in ${count(tree.parents.length, "row")}`;
  if (encode === 0) return "All are -1. Nodes come in order of their numbers; each sets one.";
  const { node, parent, array, at } = tree.encoding[encode - 1];
  return array === "retrieve_next_token"
    ? `next_token[${at}] = ${node}: the first child of node ${parent}`
    : `next_sibling[${at}] = ${node}: the child of node ${parent} after ${at}`;
}

function drawEncoding({ tree, encode }) {
  const most = tree?.encoding.length ?? 0;
  $("#inspect-encoding").hidden = most === 0;
  if (most === 0) return stopPlaying();
  const on = encode !== null;
  handle("encode-show").setAttribute("aria-pressed", String(on));
  slider.max = most;
  slider.value = encode ?? most;
  slider.setAttribute("aria-valuetext", sentence(inspected));
  handle("encode-prev").disabled = on && encode === 0;
  handle("encode-next").disabled = !on || encode === most;
  handle("encode-play").setAttribute("aria-pressed", String(Boolean(playing)));
  handle("encode-says").textContent = sentence(inspected);
}

function drawProbs({ tree, probs, fault, found }) {
  $("#inspect-walk").hidden = !tree || tree.parents.length < 2;
  if (!tree) return;
  const shown = probs ?? tree.node_probs;
  if (document.activeElement !== field) field.value = shown ? shown.map((p) => Number(p.toPrecision(6))).join(" ") : "";
  field.placeholder = tree.has_rows ? "from target_probs, as given" : "of node 1, node 2, …";
  handle("inspect-drafted").hidden = !tree.draft_log_probs;
  handle("inspect-coins").disabled = !inspected.walk;
  const wrong = handle("inspect-error");
  wrong.hidden = !fault;
  wrong.textContent = fault ?? "";
  $("#inspect-coins-say").textContent =
    !inspected.walk ? "" : found && tree.coins_given ? "coins as given; drag them in the walk" : "coins drawn here; drag them in the walk";
}

function drawAcceptance({ found }) {
  const record = found?.kind === "acceptance" ? found.acceptance : null;
  $("#inspect-acceptance").hidden = !record;
  if (!record) return;
  const rows = [
    ["engine", record.source],
    ["records", record.requests],
    ["verify steps", record.steps],
    ["draft tokens", record.drafted],
    ["accepted drafts", record.accepted],
    ["of those drafted", record.drafted ? fixed(record.accepted / record.drafted) : null],
    ["tokens a step, reported", record.mean_emitted],
  ];
  handle("foreign-facts").replaceChildren(
    ...rows.map(([name, value]) =>
      el("div", {}, el("dt", {}, name), el("dd", { class: "num" }, value == null ? "not given" : String(value))),
    ),
  );
  const depths = (record.unconditional ?? []).map((unconditional, i) => ({
    unconditional,
    conditional: record.conditional[i],
  }));
  $("#chart-foreign").hidden = depths.length === 0;
  $("#foreign-none").hidden = depths.length > 0;
  if (depths.length) drawDepths(depths, $("#chart-foreign"));
}

function drawInspector() {
  const { found, tree } = inspected;
  $(".centre").dataset.inspected = tree ? "tree" : found ? "acceptance" : "none";
  if (store.tab !== "inspect") return stopPlaying();
  $("#inspect-blank").hidden = Boolean(found);
  $("#inspect-body").hidden = !found;
  drawHead(inspected);
  if (!found) return;
  $("#inspect-check").hidden = !tree;
  drawMissing(inspected);
  drawFaults(inspected);
  drawEncoding(inspected);
  drawProbs(inspected);
  drawAcceptance(inspected);
}

function stopPlaying() {
  clearInterval(playing);
  playing = 0;
}

function play() {
  if (playing) return stopPlaying();
  const most = inspected.tree.encoding.length;
  if (inspected.encode === null || inspected.encode === most) setEncode(0);
  playing = setInterval(() => {
    if (inspected.encode === null || inspected.encode >= most) stopPlaying();
    else setEncode(inspected.encode + 1);
    drawEncoding(inspected);
  }, PLAY);
}

function readProbs() {
  const text = field.value.trim();
  if (text === "") return setProbs(null);
  const values = text.split(/[\s,;]+/).filter(Boolean).map(Number);
  const bad = values.findIndex((value) => !Number.isFinite(value));
  if (bad < 0) return setProbs(values);
  inspected.fault = `probability ${bad + 1} is no number: write one for each node, parted by spaces`;
  drawProbs(inspected);
}

const turn = (by) =>
  goToTree(inspected.tree.index + by).catch((fault) => {
    inspected.fault = fault.message;
    drawProbs(inspected);
  });

for (const button of pane.querySelectorAll("[data-open]")) button.addEventListener("click", openPaste);
handle("inspect-prev").addEventListener("click", () => turn(-1));
handle("inspect-next").addEventListener("click", () => turn(1));
handle("encode-show").addEventListener("click", () => {
  stopPlaying();
  setEncode(inspected.encode === null ? 0 : null);
});
handle("encode-prev").addEventListener("click", () => setEncode((inspected.encode ?? slider.max) - 1));
handle("encode-next").addEventListener("click", () => setEncode(inspected.encode + 1));
handle("encode-play").addEventListener("click", () => {
  play();
  drawEncoding(inspected);
});
slider.addEventListener("input", () => setEncode(Number(slider.value)));
field.addEventListener("change", readProbs);
handle("inspect-drafted").addEventListener("click", () => setProbs(inspected.tree.draft_log_probs.map((p) => Math.exp(p ?? -Infinity))));
handle("inspect-coins").addEventListener("click", newCoins);
list.addEventListener("click", (event) => {
  const node = event.target.closest("li")?.dataset.node;
  if (node !== undefined) selectNode(Number(node));
});
link(list);
onTouch(["inspect", "tab", "size", "theme"], drawInspector);
