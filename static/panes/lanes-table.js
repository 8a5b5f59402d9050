// What lanes add up to, and where their texts part: the server's figures, in a table and in sentences.

import { $, el, handle, num } from "../core/dom.js";
import { NONE, count, fixed, millis, prob } from "../core/format.js";
import { quoted } from "../core/text.js";
import { laneWords } from "./lane-view.js";

const STAGES = ["total", "draft", "build", "encode", "verify", "sample", "commit", "other"];

function line(lane, index, base) {
  const cell = (text, title) => el("td", { class: "r", title }, String(text));
  const speedup =
    lane.speedup === null
      ? cell(NONE, base === null ? "no autoregressive lane to compare with" : "no step yet")
      : cell(index === base ? "1" : `${fixed(lane.speedup, 2)}x`);
  return el(
    "tr",
    { data: { lane: index + 1 }, class: index === base ? "base" : null },
    el("th", { scope: "row", class: "r" }, String(index + 1)),
    el("td", {}, laneWords(lane.settings), lane.settings.temperature > 0 ? ` · T ${lane.settings.temperature}` : ""),
    cell(lane.committed),
    cell(lane.steps),
    cell(fixed(lane.tau, 2)),
    cell(fixed(lane.tokens_per_second, 1)),
    speedup,
    ...STAGES.map((stage) => cell(millis(lane.stages[stage]))),
  );
}

const lane = (index) => ["lane ", num(index + 1)];

/** What the target gave both tokens, in the record of one lane. */
function margin(index, { left, right, margin: logits }) {
  if (left === null && right === null) return [];
  const words = logits === null ? "" : `, a margin of ${Math.abs(logits).toFixed(3)} in logits`;
  return [" In ", ...lane(index), "’s record the target gave them ", num(prob(left)), " and ", num(prob(right)), `${words}.`];
}

function sentence({ left, right, index, tokens, given }, lanes) {
  const pair = [...lane(right), " and ", ...lane(left)];
  if (index === null) {
    const { committed } = lanes[right];
    return ["equal", [...pair, " committed the same ", num(committed), committed === 1 ? " token." : " tokens."]];
  }
  const [one, other] = tokens;
  if (!one || !other) {
    const ended = one ? right : left;
    return ["ended", [...pair, " agree until ", ...lane(ended), " ends after ", num(index), index === 1 ? " token." : " tokens."]];
  }
  const recorded = [...(given[0] ? margin(left, given[0]) : []), ...(given[1] ? margin(right, given[1]) : [])];
  return [
    "parted",
    [
      ...pair,
      " part at token ",
      num(index),
      ": ",
      quoted(other.text),
      ` (step ${other.step}) against `,
      quoted(one.text),
      ` (step ${one.step}).`,
      ...(recorded.length ? recorded : [" The target’s probabilities there were not recorded."]),
    ],
  ];
}

function note({ lanes, same_prompt, same_seed, same_machine }) {
  const sampled = lanes.some(({ settings }) => settings.temperature >= 1e-5);
  const words = [
    !same_prompt && "The prompts differ: figures and texts are of different tasks.",
    !same_machine && "The runs were not made with the same engine on the same machine: their times are no fair comparison.",
    sampled && "Sampled: coins belong to steps and nodes, so lanes that step differently draw different texts from the same distribution.",
    sampled && !same_seed && "The seeds differ, too.",
    !sampled && "Greedy: on a target whose tree pass is exact, all lanes commit the same text; elsewhere rounding may part them at a near tie.",
    "Prefill is left out of every time here.",
  ];
  return words.filter(Boolean).join(" ");
}

/** @param {object} figures what /api/lanes answered */
export function drawFigures(figures) {
  const { lanes, base, differences } = figures;
  $("tbody", handle("lanes-table")).replaceChildren(...lanes.map((one, i) => line(one, i, base)));
  const items = differences.map((difference) => {
    const [kind, words] = sentence(difference, lanes);
    return el("li", { data: { kind, left: difference.left + 1, right: difference.right + 1 } }, ...words);
  });
  if (items.length === 0) items.push(el("li", { data: { kind: "alone" } }, "One lane alone: nothing to compare with."));
  handle("differences").replaceChildren(...items);
  handle("lanes-note").textContent = note(figures);
  return count(lanes.length, "lane");
}
