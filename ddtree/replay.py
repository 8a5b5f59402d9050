"""Re-derive every decision of a trace, and say where it does not hold.

The tree from its candidate rows, the arrays from the tree, the coins from the seed, the path from coins and
probabilities, the bonus token from its cumulative, what was committed from the path, the counters from the
steps. What a trace does not carry (the target's whole rows) is taken as given.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from ddtree import trace
from ddtree.retrieve import compile_ddtree_retrieve
from ddtree.run import cut_committed
from ddtree.sampling import coins
from ddtree.trace_file import structure_faults
from ddtree.tree import DraftTree, build_ddtree_tree

REL_TOL = 1e-6
"""Of sums that are added up again here; integers and verdicts must be equal."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A place that does not hold: its JSON path, and what is there against what follows from the rest."""

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}"


def check_trace(given: trace.Trace) -> list[Finding]:
    """Every place of `given` that does not follow from the rest of it, in the order of the steps."""
    faults = [Finding(path, message) for path, message in structure_faults(given)]
    if faults:
        return faults
    found: list[Finding] = []
    committed: list[int] = []
    for i, step in enumerate(given.steps):
        for path, message in _step(given, step, committed):
            found.append(Finding(f"steps[{i}].{path}", message))
        if step.committed is not None:
            committed += step.committed.token_ids
    found += [Finding(path, message) for path, message in _summary(given, committed)]
    return found


Faults = Iterator[tuple[str, str]]


def _differs(path: str, there: object, derived: object) -> Faults:
    if there != derived:
        yield path, f"is {there}; it follows that it is {derived}"


def _list_differs(path: str, there: list[int] | list[float], derived: list[int] | list[float]) -> Faults:
    if len(there) != len(derived):
        yield path, f"has {len(there)} entries; it follows that it has {len(derived)}"
        return
    for i, (a, b) in enumerate(zip(there, derived, strict=True)):
        if a != b:
            yield f"{path}[{i}]", f"is {a}; it follows that it is {b}"
            return


def _close(a: float, b: float) -> bool:
    return math.isclose(a, b, rel_tol=REL_TOL, abs_tol=1e-9)


def _step(given: trace.Trace, step: trace.Step, committed: list[int]) -> Faults:
    sequence = [*given.prompt.token_ids, *committed]
    yield from _differs("root.token_id", step.root.token_id, sequence[-1])
    yield from _differs("root.position", step.root.position, len(sequence) - 1)
    if step.tree is None:
        return
    yield from _tree(step, step.tree)
    if step.sampling is not None and step.accept is not None and step.target is not None:
        yield from _sampling(step, step.sampling)
        yield from _walk(step, step.tree, step.target, step.sampling, step.accept)
        yield from _bonus(step, step.target, step.sampling, step.accept)
        if step.committed is not None:
            path = [step.tree.token_ids[node - 1] for node in step.accept.accept_index[1:]]
            room = given.settings.max_new_tokens - len(committed)
            cut, _ = cut_committed([*path, step.accept.bonus_token_id], given.stop_token_ids, room)
            yield from _list_differs("committed.token_ids", step.committed.token_ids, cut)


def _tree(step: trace.Step, tree: trace.Tree) -> Faults:
    rows = (
        step.draft.rows if step.draft is not None else trace.CandidateRows(top_log_probs=[], top_token_ids=[])
    )
    try:
        rebuilt = rebuild_tree(rows, step.budget)
    except ValueError as error:
        yield "draft.rows", str(error)
        return
    taken = list(zip(rebuilt.rows.tolist(), rebuilt.ranks.tolist(), strict=True))
    values = [rows.top_log_probs[row][rank] for row, rank in taken]
    derived = {
        "token_ids": rebuilt.token_ids.tolist(),
        "parents": rebuilt.parents.tolist(),
        "depths": rebuilt.depths.tolist(),
        "ranks": rebuilt.ranks.tolist(),
        "row": rebuilt.rows.tolist(),
        "log_weights": rebuilt.log_weights.tolist(),
        "draft_log_probs": [-math.inf if value is None else value for value in values],
    }
    for name, follows in derived.items():
        yield from _list_differs(f"tree.{name}", getattr(tree, name), follows)
    yield from _origins(step, tree, taken)
    if step.retrieve is not None:
        arrays = compile_ddtree_retrieve(rebuilt)
        for name in type(step.retrieve).model_fields:
            there = getattr(step.retrieve, name)
            yield from _list_differs(f"retrieve.{name}", there, getattr(arrays, name).tolist())


def _origins(step: trace.Step, tree: trace.Tree, taken: list[tuple[int, int]]) -> Faults:
    """Each node's origin is its candidate's, which is the draft's source where no origins are given."""
    if step.draft is None:
        return
    origins, source = step.draft.rows.origins, step.draft.source
    if (origins is None) == (source == "hybrid"):
        there = "no origins" if origins is None else "origins"
        yield "draft.rows.origins", f"a draft of {source} has {there}; a hybrid's alone has them"
        return
    follows = [source if origins is None else origins[row][rank] for row, rank in taken]
    for i, (there, derived) in enumerate(zip(tree.origin, follows, strict=False)):
        if there != derived:
            yield f"tree.origin[{i}]", f"is {there}; it follows that it is {derived}"
            return


def rebuild_tree(rows: trace.CandidateRows, budget: int) -> DraftTree:
    """The tree of `budget` nodes of a trace's candidate rows. Raises ValueError for rows that are none."""
    width = max((len(row) for row in rows.top_log_probs), default=0) or 1
    count = len(rows.top_log_probs)
    log_probs = torch.full((count, width), -math.inf, dtype=torch.float64)
    beyond = 1 + max((i for row in rows.top_token_ids for i in row), default=0)
    token_ids = (beyond + torch.arange(width)).repeat(count, 1)  # padding: distinct ids without mass
    child_rows = None if rows.child_rows is None else torch.full((count, width), -1, dtype=torch.int64)
    for r, (logs, ids) in enumerate(zip(rows.top_log_probs, rows.top_token_ids, strict=True)):
        log_probs[r, : len(logs)] = torch.tensor(
            [-math.inf if value is None else value for value in logs], dtype=torch.float64
        )
        token_ids[r, : len(ids)] = torch.tensor(ids, dtype=torch.int64)
        if child_rows is not None and rows.child_rows is not None:
            child_rows[r, : len(ids)] = torch.tensor(rows.child_rows[r], dtype=torch.int64)
    return build_ddtree_tree(log_probs, token_ids, child_rows, budget)


def _sampling(step: trace.Step, sampling: trace.Sampling) -> Faults:
    if step.settings.seed is None:
        yield "settings.seed", "is null; a step records the seed in force"
        return
    uniform, final = coins(step.settings.seed, step.index, len(sampling.uniform_samples))
    yield from _list_differs("sampling.uniform_samples", sampling.uniform_samples, uniform.tolist())
    yield from _differs("sampling.final_uniform", sampling.final_uniform, final)
    yield from _differs("sampling.rule", sampling.rule, "greedy" if step.settings.greedy else "target_only")
    for name in ("threshold_single", "threshold_acc"):
        yield from _differs(f"sampling.{name}", getattr(sampling, name), getattr(step.settings, name))


def _walk(
    step: trace.Step,
    tree: trace.Tree,
    target: trace.TargetScores,
    sampling: trace.Sampling,
    accept: trace.Accept,
) -> Faults:
    """The walk of DESIGN's sampler again, in float64, over the recorded probabilities and coins."""
    decisions = step.decisions or []
    tried, path, node = 0, [0], 0
    while True:
        children = [child for child in range(1, len(tree.parents)) if tree.parents[child] == node]
        coin, cumulative, accepted = sampling.uniform_samples[node], 0.0, None
        for child in children:
            where = f"decisions[{tried}]"
            prob = target.probs[child - 1]
            if prob is None:
                yield f"target.probs[{child - 1}]", f"is null, but the walk tries node {child}"
                return
            if tried >= len(decisions):
                yield "decisions", f"end before node {child}, which the walk tries"
                return
            cumulative += prob
            holds = _accepts(prob, coin, cumulative, sampling)
            there = decisions[tried]
            yield from _differs(f"{where}.node", there.node, child)
            yield from _differs(f"{where}.prob", there.prob, prob)
            yield from _differs(f"{where}.coin", there.coin, coin)
            yield from _differs(f"{where}.verdict", there.verdict, "accepted" if holds else "rejected")
            if not _close(there.cumulative, cumulative):
                yield (
                    f"{where}.cumulative",
                    f"is {there.cumulative}; the probabilities add up to {cumulative}",
                )
            tried += 1
            if holds:
                accepted = child
                break
        if accepted is None:
            break
        node = accepted
        path.append(node)
    if tried < len(decisions):
        yield f"decisions[{tried}]", f"node {decisions[tried].node} is tried after the walk has ended"
    yield from _list_differs("accept.accept_index", accept.accept_index, path)
    yield from _differs("accept.accept_token_num", accept.accept_token_num, len(path) - 1)


def _accepts(prob: float, coin: float, cumulative: float, sampling: trace.Sampling) -> bool:
    if prob <= 0:
        return False
    if prob >= sampling.threshold_single or sampling.threshold_acc == 0:
        return True
    return coin < cumulative / sampling.threshold_acc


def _bonus(
    step: trace.Step, target: trace.TargetScores, sampling: trace.Sampling, accept: trace.Accept
) -> Faults:
    rejected = {d.node for d in step.decisions or () if d.verdict == "rejected"}
    assert step.tree is not None
    last = accept.accept_index[-1]
    tried = {node for node in rejected if step.tree.parents[node] == last}
    row = next((row for row in target.rows if row.node == last), None)
    if row is None:
        yield "target.rows", f"has no row of node {last}, where the bonus token comes from"
        return
    if sampling.rule == "greedy":
        yield from _differs("accept.bonus_source", accept.bonus_source, "argmax")
        yield from _differs("accept.bonus_token_id", accept.bonus_token_id, row.token_ids[0])
        return
    if accept.bonus_source == "last_tried":
        yield from _differs("accept.residual_mass", accept.residual_mass, 0.0)
        return
    yield from _differs("accept.bonus_source", accept.bonus_source, "residual" if tried else "full_row")
    if accept.bonus_token_id in {step.tree.token_ids[node - 1] for node in tried}:
        yield (
            "accept.bonus_token_id",
            f"is {accept.bonus_token_id}, which was tried and rejected at node {last}",
        )
    if accept.bonus_prob <= 0:
        yield "accept.bonus_prob", f"is {accept.bonus_prob}; an emitted token has probability"
    left = 1.0 - sum(target.probs[node - 1] or 0.0 for node in tried)
    if not math.isclose(accept.residual_mass, left, rel_tol=1e-4, abs_tol=1e-4):
        yield "accept.residual_mass", f"is {accept.residual_mass}; the rejected tokens leave {left}"
    mark = sampling.final_uniform * accept.residual_mass
    slack = REL_TOL * max(accept.residual_mass, 1e-30)
    lower = accept.bonus_cumulative - accept.bonus_prob
    if not lower - slack <= mark < accept.bonus_cumulative + slack:
        yield (
            "accept.bonus_cumulative",
            f"the final coin points at {mark}, outside [{lower}, {accept.bonus_cumulative})",
        )
    if accept.bonus_token_id in row.token_ids:
        shown = row.probs[row.token_ids.index(accept.bonus_token_id)]
        if not _close(shown, accept.bonus_prob):
            yield "accept.bonus_prob", f"is {accept.bonus_prob}; the target's row has {shown}"


def _summary(given: trace.Trace, committed: list[int]) -> Faults:
    summary = given.summary
    if summary is None:
        return
    done = [step for step in given.steps if step.committed is not None]
    yield from _differs("summary.steps", summary.steps, len(done))
    yield from _differs("summary.committed", summary.committed, len(committed))
    accepted = sum(
        min(step.accept.accept_token_num, len(step.committed.token_ids))
        for step in done
        if step.accept is not None and step.committed is not None
    )
    yield from _differs("summary.accepted_drafts", summary.accepted_drafts, accepted)
    tau = len(committed) / len(done) if done else None
    yield from _differs("summary.tau", summary.tau, tau)
    yield from _differs("summary.lossy", summary.lossy, any(step.settings.lossy for step in given.steps))
    stopped = bool(committed) and committed[-1] in given.stop_token_ids
    failed = bool(given.steps) and given.steps[-1].error is not None
    full = len(committed) >= given.settings.max_new_tokens
    ended = "error" if failed else "stop" if stopped else "length" if full else summary.finish_reason
    yield from _differs("summary.finish_reason", summary.finish_reason, ended)
    if ended in ("stop", "length") and not (stopped or full):
        yield "summary.finish_reason", f"is {ended}; no stop token came and the limit was not reached"
