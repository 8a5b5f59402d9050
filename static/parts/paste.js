// A tree from pasted top-k: the server builds it as a run would, and the same panes show it.

import { $, el, handle } from "../core/dom.js";
import { buildTree } from "../core/api.js";
import { showPasted } from "../core/store.js";
import { viewOf } from "../core/step.js";

const dialog = handle("paste-dialog");
const area = handle("paste-json");
const choice = handle("paste-example");
const wrong = handle("paste-error");

const logs = (rows) => rows.map((row) => row.map((p) => Math.log(p)));

const EXAMPLES = [
  [
    "three depths, two candidates each, budget 5",
    {
      top_log_probs: logs([
        [0.7, 0.3],
        [0.6, 0.4],
        [0.8, 0.2],
      ]),
      top_token_ids: [
        [10, 11],
        [20, 21],
        [30, 31],
      ],
      budget: 5,
    },
  ],
  [
    "exact ties: the smaller path of ranks first",
    {
      top_log_probs: logs([
        [0.5, 0.25, 0.25],
        [0.5, 0.25, 0.25],
      ]),
      top_token_ids: [
        [1, 2, 3],
        [4, 5, 6],
      ],
      budget: 5,
    },
  ],
  [
    "a heap that drains early: 6 of 100 nodes",
    {
      top_log_probs: logs([
        [0.7, 0.3],
        [0.7, 0.3],
      ]),
      top_token_ids: [
        [0, 1],
        [0, 1],
      ],
      budget: 100,
    },
  ],
  [
    "a certain token: -inf is null and never enters",
    {
      top_log_probs: [[0, null, null]],
      top_token_ids: [[0, 1, 2]],
      budget: 3,
    },
  ],
];

/** JSON with a row of numbers on one line. */
function spelled(example) {
  const rows = (list) =>
    `[\n    ${list.map((row) => JSON.stringify(row).replaceAll(",", ", ")).join(",\n    ")}\n  ]`;
  return `{\n  "top_log_probs": ${rows(example.top_log_probs)},\n  "top_token_ids": ${rows(example.top_token_ids)},\n  "budget": ${example.budget}\n}`;
}

/** The server's tree and arrays in the form of a step that has no target side. */
function asStep({ tree, retrieve }, budget) {
  const root = { token_id: null, text: null, position: null };
  return {
    index: null,
    root,
    settings: { budget },
    draft: null,
    tree,
    retrieve,
    target: null,
    sampling: null,
    decisions: null,
    accept: null,
    committed: null,
    timing_ms: null,
    error: null,
  };
}

function say(message) {
  wrong.hidden = !message;
  wrong.textContent = message ?? "";
}

async function build() {
  say(null);
  let asked;
  try {
    asked = JSON.parse(area.value);
  } catch (fault) {
    return say(`This is not JSON: ${fault.message}`);
  }
  try {
    const built = await buildTree(area.value);
    showPasted(viewOf(asStep(built, asked.budget)));
    dialog.close();
    handle("tree").focus();
  } catch (fault) {
    say(fault.message);
  }
}

function open() {
  say(null);
  if (area.value === "") area.value = spelled(EXAMPLES[0][1]);
  dialog.showModal();
}

export function startPaste() {
  choice.append(...EXAMPLES.map(([name], i) => el("option", { value: i }, name)));
  choice.addEventListener("change", () => {
    area.value = spelled(EXAMPLES[Number(choice.value)][1]);
    say(null);
  });
  handle("paste").addEventListener("click", open);
  handle("paste-build").addEventListener("click", build);
}
