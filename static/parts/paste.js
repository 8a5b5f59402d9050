// Paste or open: text, an example or a file goes to the server, which says what it is; the Inspector shows it.

import { el, handle } from "../core/dom.js";
import { openInspection } from "../core/inspect.js";

const dialog = handle("paste-dialog");
const area = handle("paste-json");
const choice = handle("paste-example");
const file = handle("paste-file");
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
  [
    "retrieve arrays with faults",
    {
      retrieve_next_token: [1, 3, -1, 0, -1, -1],
      retrieve_next_sibling: [-1, 2, 9, -1, -1, -1],
      candidates: [5, 7, 7, 8, 9, 3],
      num_nodes: 5,
    },
  ],
  [
    "parents and tokens, with the target’s probabilities: a walk",
    {
      parents: [-1, 0, 1, 2, 0, 1],
      token_ids: [10, 20, 30, 11, 21],
      probs: [0.5, 0.6, 0.9, 0.3, 0.2],
      uniform_samples: [0.31, 0.75, 0.42, 0.5, 0.11, 0.6],
      final_coin: 0.4,
    },
  ],
  [
    "SGLang’s buffers of two requests",
    {
      draft_token: [9, 5, 6, 8, 5, 7],
      retrive_index: [
        [0, 1, 2],
        [3, 4, 5],
      ],
      retrive_next_token: [
        [1, -1, -1],
        [1, 2, -1],
      ],
      retrive_next_sibling: [
        [-1, 2, -1],
        [-1, -1, -1],
      ],
      positions: [10, 11, 11, 20, 21, 22],
      predicts: [6, 0, 3, 5, 7, 4],
      accept_index: [
        [0, 2, -1],
        [3, 4, 5],
      ],
      accept_token_num: [1, 2],
    },
  ],
  [
    "vLLM’s acceptance counters",
    {
      num_drafts: 400,
      num_draft_tokens: 1200,
      num_accepted_tokens: 600,
      num_accepted_tokens_per_pos: [300, 200, 100],
    },
  ],
];

const line = (list) => JSON.stringify(list).replaceAll(",", ", ");

/** JSON with a list, or a row of a matrix, on one line. */
function spelled(example) {
  const value = (v) => (Array.isArray(v?.[0]) ? `[\n    ${v.map(line).join(",\n    ")}\n  ]` : line(v));
  const fields = Object.entries(example).map(([name, v]) => `  "${name}": ${value(v)}`);
  return `{\n${fields.join(",\n")}\n}`;
}

function say(message) {
  wrong.hidden = !message;
  wrong.textContent = message ?? "";
}

async function give(data, name) {
  say(null);
  try {
    await openInspection(data, name);
    dialog.close();
    handle("tree").focus();
  } catch (fault) {
    say(name ? `${name}: ${fault.message}` : fault.message);
    if (!dialog.open) dialog.showModal();
  }
}

/** The dialog, with what was pasted last. */
export function openPaste() {
  say(null);
  if (area.value === "") area.value = spelled(EXAMPLES[0][1]);
  if (!dialog.open) dialog.showModal();
}

/** A file chosen or dropped; what is wrong with it is said in the dialog. */
export const openFile = async (given) => give(await given.arrayBuffer(), given.name);

export function startPaste() {
  choice.append(...EXAMPLES.map(([name], i) => el("option", { value: i }, name)));
  choice.addEventListener("change", () => {
    area.value = spelled(EXAMPLES[Number(choice.value)][1]);
    say(null);
  });
  handle("paste").addEventListener("click", openPaste);
  handle("paste-build").addEventListener("click", () => give(area.value, ""));
  handle("paste-choose").addEventListener("click", () => file.click());
  file.addEventListener("change", () => {
    if (file.files[0]) openFile(file.files[0]);
    file.value = ""; // the same file may be chosen again
  });
}
