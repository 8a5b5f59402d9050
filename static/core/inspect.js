// The Inspector: what was pasted or dropped, as the server reads it; its tree as a view like a step's; its walk
// with the coins of the moment; how far its encoding is shown. Verdicts, faults and pointers are the server's.

import { fetchInspected, inspect, walkInspected } from "./api.js";
import { touch } from "./schedule.js";
import { viewOf } from "./step.js";
import { showPasted } from "./store.js";

const MOST_COIN = 1 - 2 ** -24; // coins lie in [0, 1)

export const inspected = {
  found: null, // the server's answer: kind, written_as, trees, missing, ignored, acceptance
  given: null, // {data, name}, to be given again when the server has made room for others
  tree: null,
  coins: [],
  final: 0,
  probs: null, // each node's target probability, typed here; null: as given with the tree
  walk: null,
  fault: null, // why there is no walk
  encode: null, // pointers of the encoding that are shown; null: all, with the walk
};

/** Read text or a file's bytes and show its first tree. Throws the server's sentence. */
export async function openInspection(data, name = "") {
  const found = await inspect(data, name);
  Object.assign(inspected, { found, given: { data, name } });
  await take(found.tree);
}

/** Show another tree of the same paste. */
export async function goToTree(index) {
  const { found } = inspected;
  const tree = await again(() => fetchInspected(found.id, index));
  if (inspected.found === found) await take(tree);
}

/** Ask; where the inspection is no longer kept, give its text once more and ask again. */
async function again(ask) {
  try {
    return await ask();
  } catch (fault) {
    if (fault.status !== 404) throw fault;
    await inspect(inspected.given.data, inspected.given.name);
    return ask();
  }
}

async function take(tree) {
  Object.assign(inspected, { tree, probs: null, walk: null, fault: null, encode: null });
  if (tree) Object.assign(inspected, { coins: [...tree.uniform_samples], final: tree.final_uniform });
  if (canWalk()) await walk(false);
  else rebuild(false);
}

/** Whether probabilities were given, with the tree or here. */
export const canWalk = () => {
  const { tree, probs } = inspected;
  return Boolean(tree && (probs || tree.node_probs || tree.has_rows));
};

let walking = false;
let stale = false;

/** Ask for the walk with the coins as they are; while one is on its way, only the newest of the others. */
async function walk(kept = true) {
  if (walking) {
    stale = true;
    return;
  }
  walking = true;
  do {
    stale = false;
    const { found, tree, coins, final, probs } = inspected;
    const asked = { uniform_samples: coins, final_uniform: final, ...(probs ? { probs } : {}) };
    try {
      const answer = await again(() => walkInspected(found.id, tree.index, asked));
      if (inspected.tree !== tree) continue;
      Object.assign(inspected, { walk: answer, fault: null });
    } catch (fault) {
      if (inspected.tree !== tree) continue;
      Object.assign(inspected, { walk: null, fault: fault.message });
    }
    rebuild(kept);
  } while (stale);
  walking = false;
}

/** Move a coin: a node's by its number, or "final". */
export function moveCoin(place, value) {
  const coin = Math.min(Math.max(value, 0), MOST_COIN);
  if (place === "final") inspected.final = coin;
  else inspected.coins[place] = coin;
  walk();
}

export const coinAt = (place) => (place === "final" ? inspected.final : inspected.coins[place]);

export function newCoins() {
  const draw = () => Math.floor(Math.random() * 2 ** 24) / 2 ** 24;
  inspected.coins = inspected.coins.map(draw);
  inspected.final = draw();
  walk();
}

/** Each node's target probability given its parent; null: as they were given. */
export function setProbs(probs) {
  Object.assign(inspected, { probs, walk: null, fault: null });
  if (canWalk()) walk();
  else rebuild(true);
}

/** Show the first `count` pointers of the encoding; null: the whole, with the walk. */
export function setEncode(count) {
  inspected.encode = count === null ? null : Math.min(Math.max(count, 0), inspected.tree.encoding.length);
  rebuild(true);
}

// ---- the view ----

function acceptOf(tree, answer) {
  const none = { bonus_text: null, bonus_draft_rank: null };
  if (answer) return { ...answer, ...none };
  if (!tree.accept_index) return null;
  const known = tree.bonus_token_id !== null;
  return {
    accept_index: tree.accept_index,
    accept_token_num: tree.accept_index.length - 1,
    bonus_token_id: tree.bonus_token_id,
    bonus_source: known ? undefined : null,
    ...none,
  };
}

function silenceOf(tree) {
  if (inspected.encode !== null) return "While the encoding is shown there is no walk.";
  if (inspected.fault) return `There is no walk: ${inspected.fault}.`;
  const recorded = tree.accept_index
    ? `The recorded path accepts ${tree.accept_index.length - 1} of its drafts. `
    : "";
  return `${recorded}There is no walk with coins: it needs the target’s probabilities. Give target_probs with the tree, or type each node’s above.`;
}

function asStep(tree, answer) {
  const nodes = tree.parents.length - 1;
  const { coins, final } = inspected;
  return {
    index: null,
    root: { token_id: tree.root_token_id, text: null, position: null },
    settings: { budget: tree.budget },
    draft: null,
    tree: {
      token_ids: tree.token_ids ?? Array(nodes).fill(null),
      parents: tree.parents,
      depths: tree.depths,
      ranks: tree.ranks ?? [],
      row: tree.row ?? [],
      log_weights: tree.log_weights ?? [],
      draft_log_probs: tree.draft_log_probs ?? [],
    },
    retrieve: {
      retrieve_index: tree.retrieve_index ?? [],
      retrieve_next_token: tree.retrieve_next_token,
      retrieve_next_sibling: tree.retrieve_next_sibling,
    },
    target: answer ? { probs: answer.probs, raw_probs: [], rows: [] } : null,
    sampling: answer
      ? {
          uniform_samples: coins,
          final_uniform: final,
          threshold_single: 1,
          threshold_acc: 1,
          rule: "target_only",
        }
      : null,
    decisions: answer?.decisions ?? null,
    accept: acceptOf(tree, answer),
    committed: null,
    timing_ms: null,
    error: null,
    silence: silenceOf(tree),
  };
}

/** Faults at their nodes, nodes that nothing leads to under the root, the children as they are safe to walk. */
function mark(view, tree) {
  view.nodes.forEach((node) => (node.children = [...tree.children[node.n]]));
  for (const n of tree.lost) {
    Object.assign(view.nodes[n], { lost: true, parent: 0, depth: 1 });
    view.nodes[0].children.push(n);
  }
  for (const fault of tree.faults) (view.nodes[fault.node].faults ??= []).push(fault);
}

/** Only the first pointers are written yet, and only their nodes are there. */
function encodeUpTo(view, tree, count) {
  const written = tree.encoding.slice(0, count);
  for (const node of view.nodes) Object.assign(node, { next_token: -1, next_sibling: -1 });
  for (const { array, at, node } of written) view.nodes[at][array.replace("retrieve_", "")] = node;
  const newest = written.at(-1);
  if (newest) view.nodes[newest.at].wrote = newest.array.replace("retrieve_", "");
  view.cut = { cut: count < tree.encoding.length, budget: newest?.node ?? 0, bonusKnown: false };
}

function rebuild(kept) {
  const { tree, encode } = inspected;
  let view = null;
  if (tree) {
    const answer = encode === null ? inspected.walk : null;
    view = viewOf(asStep(tree, answer));
    view.cut = { cut: false };
    view.movable = Boolean(answer);
    mark(view, tree);
    if (encode !== null) encodeUpTo(view, tree, encode);
  }
  showPasted(view, kept);
  touch("inspect");
}
