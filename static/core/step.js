// A trace step as the panes show it: the arrays turned into nodes, the walk's words looked up. Nothing is
// decided here: verdicts, probabilities, coins and pointers are the server's.

/** The most nodes a chain of pointers can have; arrays of a broken paste must not hang the page. */
const NO_MORE = 5000;

/** Children of a node in the order tried, by the retrieve arrays. */
function childrenOf(retrieve, n) {
  const out = [];
  let child = retrieve.retrieve_next_token[n] ?? -1;
  while (child > 0 && out.length < NO_MORE) {
    out.push(child);
    child = retrieve.retrieve_next_sibling[child] ?? -1;
  }
  return out;
}

function nodesOf({ index, tree, retrieve, target, sampling }, root) {
  const verdict = index === null && !sampling ? "unseen" : "untried"; // until the walk is read
  const coin = (n) => sampling?.uniform_samples[n] ?? null;
  const nodes = [{ n: 0, ...root, parent: -1, depth: 0, verdict: "root", origin: "root", coin: coin(0) }];
  const size = tree?.token_ids.length ?? 0;
  for (let i = 0; i < size; i++) {
    nodes.push({
      n: i + 1,
      token_id: tree.token_ids[i],
      text: tree.texts?.[i] ?? null, // a pasted tree has no texts
      parent: tree.parents[i + 1],
      depth: tree.depths[i],
      rank: tree.ranks[i],
      row: tree.row[i],
      logWeight: tree.log_weights[i],
      draftLogProb: tree.draft_log_probs[i],
      origin: tree.origin?.[i] ?? "dflash",
      prob: target?.probs[i] ?? null,
      rawProb: target?.raw_probs[i] ?? null,
      coin: coin(i + 1),
      verdict,
    });
  }
  for (const node of nodes) {
    node.children = retrieve ? childrenOf(retrieve, node.n) : [];
    node.next_token = retrieve?.retrieve_next_token[node.n] ?? null;
    node.next_sibling = retrieve?.retrieve_next_sibling[node.n] ?? null;
  }
  return nodes;
}

function bonusOf(step, path, counted) {
  const { accept, sampling } = step;
  if (!accept || accept.bonus_source === null) return null; // a recorded path may lack it
  return {
    n: "bonus",
    token_id: accept.bonus_token_id,
    text: accept.bonus_text,
    parent: path.at(-1),
    prob: accept.bonus_prob,
    source: accept.bonus_source,
    cumulative: accept.bonus_cumulative,
    residual: accept.residual_mass,
    rank: accept.bonus_draft_rank,
    coin: sampling?.final_uniform ?? null,
    counted: path.length <= counted,
    verdict: path.length <= counted ? "bonus" : "uncounted",
    origin: "bonus",
    children: [],
  };
}

/** The view of one step. `step.index` may be null: a pasted tree is no step of a run. */
export function viewOf(step) {
  const nodes = nodesOf(step, step.root);
  const path = step.accept?.accept_index ?? [];
  const committed = step.committed?.token_ids.length ?? (step.index === null ? Infinity : 0);
  const decisions = (step.decisions ?? []).map((d) => ({ ...d, at: nodes[d.node].parent }));
  for (const d of decisions) {
    nodes[d.node].verdict = d.verdict;
    nodes[d.node].decision = d;
  }
  path.slice(1).forEach((n, i) => {
    if (!step.sampling) nodes[n].verdict = "accepted"; // recorded elsewhere, without coins
    if (i >= committed) nodes[n].verdict = "uncounted";
  });
  const bonus = bonusOf(step, path, committed);
  if (bonus) bonus.depth = nodes[bonus.parent].depth + 1;
  const rows = new Map((step.target?.rows ?? []).map((row) => [row.node, row]));
  return {
    step,
    nodes,
    path,
    bonus,
    decisions,
    rows,
    committed,
    size: nodes.length - 1,
    visited: new Set(path),
  };
}

/** A token where text stands; its id where there is no text. */
export function textOf(node) {
  if (node.text != null) return node.text;
  if (node.token_id != null) return String(node.token_id);
  return node.n === 0 ? "root" : node.n === "bonus" ? "another token" : "?";
}

/** The node of a view by its handle: a number, or "bonus". */
export const nodeOf = (view, n) => (n === "bonus" ? view.bonus : (view.nodes[n] ?? null));

/** Children of a node as drawn: the bonus token stands last under the node where it was drawn. */
export function drawnChildren(view, n) {
  if (n === "bonus") return [];
  const children = view.nodes[n].children;
  return view.bonus?.parent === n ? [...children, "bonus"] : children;
}

/** The node a reader wants to know about first: where the walk ended. */
export function telling(view) {
  const last = view.decisions.at(-1);
  if (last?.verdict === "rejected") return last.node;
  return view.bonus ? "bonus" : 0;
}

/** Origin of the j-th committed token of a step. */
export function committedOrigin(step, j) {
  const node = step.accept?.accept_index[j + 1];
  return node === undefined ? "bonus" : step.tree.origin[node - 1];
}
