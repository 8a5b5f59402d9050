// The step shown with a smaller budget. Trees are nested, so the accepted path is the recorded one cut at its
// first node beyond the budget (ddtree/whatif.py, which is tested against building and walking each tree).

/**
 * @param {object} view of viewOf
 * @param {number | null} budget null: as run
 * @returns {{budget: number, cut: boolean, path: number[], emitted: number, bonusKnown: boolean}}
 */
export function cutAt(view, budget) {
  const { path, size, committed, step } = view;
  const at = Math.min(budget ?? size, size);
  const first = path.findIndex((n) => n > at);
  const kept = first < 0 ? path.length : first;
  const lost = path.length > 0 && view.nodes[path[kept - 1]].children.some((child) => child > at);
  const greedy = step.sampling?.rule === "greedy";
  return {
    budget: at,
    cut: at < size && path.length > 0, // a pasted tree has no walk
    path: path.slice(0, kept),
    emitted: Math.min(kept, committed),
    bonusKnown: greedy || !lost,
  };
}

/** [{from, to, emitted}]: runs of budgets that emit as many tokens. */
export function segments(view) {
  const { path, size, committed } = view;
  return path.slice(0, committed).map((from, i) => ({
    from,
    to: i + 1 < Math.min(path.length, committed) ? path[i + 1] - 1 : size,
    emitted: i + 1,
  }));
}
