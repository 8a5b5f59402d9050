"""What a value from elsewhere means: top-k rows, retrieve arrays, a tree, rounds of trees, or acceptance."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch

from ddtree.foreign.acceptance import AcceptanceRecord, of_counts, read_records
from ddtree.foreign.buffers import read_buffers
from ddtree.foreign.errors import ForeignError
from ddtree.foreign.rounds import MOST_NODES_IN_ALL, is_rounds, read_rounds
from ddtree.foreign.trees import MAX_NODES, ForeignTree, aligned, from_parents, parented
from ddtree.foreign.values import Floats, Ints, floats, ints, one_int
from ddtree.retrieve import compile_ddtree_retrieve
from ddtree.tree import build_ddtree_tree

Kind = Literal["topk", "arrays", "tree", "rounds", "acceptance"]

_KNOWN = (
    "top_log_probs with top_token_ids and budget; retrieve_next_token with retrieve_next_sibling; parents "
    "with token_ids; round_trees; or the acceptance counters of vLLM, SGLang or TensorRT-LLM"
)


@dataclass(frozen=True)
class Foreign:
    """What was read. `missing` lists what the format does not say, `ignored` names that were not read."""

    kind: Kind
    trees: list[ForeignTree] = field(default_factory=list)
    acceptance: AcceptanceRecord | None = None
    missing: list[str] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)


def recognise(value: Any) -> Foreign:
    """Raises ForeignError, in one sentence with the remedy, for what is none of the known forms."""
    if isinstance(value, dict):
        given = {str(key).replace("retrive_", "retrieve_", 1): entry for key, entry in value.items()}
        if given.get("format") == "ddtree-trace":
            raise ForeignError("this is a trace of this program: open it with Import")
        if "round_trees" in given:
            return _rounds(given["round_trees"], given)
        if "top_log_probs" in given:
            return _topk(given)
        if "retrieve_next_token" in given or "retrieve_next_sibling" in given:
            return _arrays(given)
        if "parents" in given:
            return _tree(given)
        if isinstance(given.get("tree"), dict) and "parents" in given["tree"]:
            return _rounds([given], given)
    if is_rounds(value):
        return _rounds(value, {})
    record = read_records(value)
    if record is not None:
        return Foreign("acceptance", acceptance=record, missing=record.missing)
    if isinstance(value, dict):
        raise ForeignError(
            f"none of the names {', '.join(map(str, list(value)[:8]))} says what this is: give {_KNOWN}"
        )
    raise ForeignError(f"an array without a name: write name = in front of it; known are {_KNOWN}")


def _lacking(tree: ForeignTree) -> list[str]:
    fields = {
        "token ids": tree.token_ids,
        "log-weights": tree.log_weights,
        "the drafter's log-probabilities": tree.draft_log_probs,
        "target probabilities": tree.node_probs if tree.target_probs is None else tree.target_probs,
        "coins": tree.coins,
    }
    return [name for name, value in fields.items() if value is None]


def _ignored(given: dict[str, Any], *known: str) -> list[str]:
    return sorted(set(given) - set(known))


# ---- top-k rows ----


def _topk(given: dict[str, Any]) -> Foreign:
    logs, given_ids = _candidate_rows(given)
    if given.get("budget") is None:
        raise ForeignError('budget is missing: write it beside the rows, as "budget": 15')
    budget = one_int("budget", given["budget"])
    if not 0 <= budget <= MAX_NODES:
        raise ForeignError(f"budget is {budget}; use 0 to {MAX_NODES}")
    ids = np.tile(np.arange(logs.shape[1]), (logs.shape[0], 1)) if given_ids is None else given_ids
    rows = given.get("child_rows")
    children = None if rows is None else torch.from_numpy(ints("child_rows", rows))
    try:
        built = build_ddtree_tree(torch.from_numpy(logs), torch.from_numpy(ids), children, budget)
        arrays = compile_ddtree_retrieve(built)
    except ValueError as error:
        raise ForeignError(str(error)) from None
    ranks, sources, weights = built.ranks.tolist(), built.rows.tolist(), built.log_weights.tolist()
    tokens = built.token_ids.tolist() if given_ids is not None else None
    found = from_parents(
        built.parents.tolist(), log_weights=weights, candidates=None if tokens is None else [-1, *tokens]
    )
    assert found.next_token == arrays.retrieve_next_token.tolist()
    tree = found.tree(
        token_ids=tokens,
        retrieve_index=arrays.retrieve_index.tolist(),
        ranks=ranks,
        rows=sources,
        log_weights=weights,
        draft_log_probs=[float(logs[row, rank]) for row, rank in zip(sources, ranks, strict=True)],
        budget=budget,
        **_walking(given, len(ranks)),
    )
    known = ("top_log_probs", "top_token_ids", "child_rows", "budget", *_WALKING)
    return Foreign("topk", [tree], missing=_lacking(tree), ignored=_ignored(given, *known))


def _candidate_rows(given: dict[str, Any]) -> tuple[Floats, Ints | None]:
    """top_log_probs [L, K], and top_token_ids where they are given; a batch of one is taken too."""
    logs = floats("top_log_probs", given["top_log_probs"], missing=-math.inf)
    ids = None if given.get("top_token_ids") is None else ints("top_token_ids", given["top_token_ids"])
    if ids is not None and ids.shape != logs.shape:
        raise ForeignError(
            f"top_token_ids is {list(ids.shape)}, top_log_probs is {list(logs.shape)}: they must be alike"
        )
    if logs.ndim == 3 and logs.shape[0] == 1:
        logs, ids = logs[0], None if ids is None else ids[0]
    if logs.ndim != 2:
        raise ForeignError(f"top_log_probs must be [depths, candidates], not {list(logs.shape)}")
    if logs.size > 4_000_000:
        raise ForeignError(
            f"{logs.size} candidates are too many: keep the {MAX_NODES} likeliest of each depth"
        )
    return logs, ids


# ---- what a walk needs, beside a single tree ----

_WALKING = ("target_probs", "probs", "uniform_samples", "coins", "final_coin", "final_uniform")


def _walking(given: dict[str, Any], nodes: int) -> dict[str, Any]:
    known: dict[str, Any] = {}
    rows = given.get("target_probs")
    if rows is not None:
        probs = floats("target_probs", rows)
        if probs.ndim == 1:
            known["node_probs"] = _of_length("target_probs", probs.tolist(), nodes)
        elif probs.ndim == 2 and len(probs) == nodes + 1:
            known["target_probs"] = probs.astype(np.float32)
        else:
            raise ForeignError(
                f"target_probs is {list(probs.shape)}; give a row for each of the {nodes + 1} nodes, root "
                f"first, or one number for each of the {nodes} below it"
            )
    if given.get("probs") is not None:
        known["node_probs"] = _of_length("probs", floats("probs", given["probs"]).tolist(), nodes)
    coins = given.get("uniform_samples", given.get("coins"))
    if coins is not None:
        known["coins"] = _of_length("coins", floats("coins", coins).ravel().tolist(), nodes + 1)
    final = given.get("final_coin", given.get("final_uniform"))
    if final is not None:
        known["final_coin"] = float(floats("final_coin", final).ravel()[0])
    return known


def _of_length(name: str, values: list[float], length: int) -> list[float]:
    if len(values) != length:
        raise ForeignError(f"{name} has {len(values)} entries; this tree needs {length}")
    return values


# ---- parents and tokens ----


def _tree(given: dict[str, Any]) -> Foreign:
    parents = ints("parents", given["parents"]).ravel().tolist()
    names = ("token_ids", "tokens", "node_token_ids", "candidates", "draft_token")
    tokens = next((ints(name, given[name]).ravel().tolist() for name in names if name in given), None)
    parents, tokens, root = aligned(parents, tokens)
    depths = next(
        (ints(name, given[name]).ravel().tolist() for name in ("depths", "node_depths") if name in given),
        None,
    )
    weights = None
    if given.get("log_weights") is not None:
        weights = floats("log_weights", given["log_weights"], -math.inf).ravel().tolist()[: len(parents) - 1]
    tree: ForeignTree = parented(parents, tokens, root, depths, weights).tree(
        token_ids=tokens, root_token=root, log_weights=weights, **_walking(given, len(parents) - 1)
    )
    known = ("parents", *names, "depths", "node_depths", "log_weights", *_WALKING)
    return Foreign("tree", [tree], missing=_lacking(tree), ignored=_ignored(given, *known))


# ---- rounds of trees ----


def _rounds(rounds: Any, given: dict[str, Any]) -> Foreign:
    outputs = given.get("output_ids")
    trees, placed = read_rounds(
        rounds, None if outputs is None else ints("output_ids", outputs).ravel().tolist()
    )
    missing = _lacking(trees[0])
    if not placed:
        why = "" if outputs is None else " (the rounds do not continue output_ids)"
        missing.append("root and bonus tokens" + why)
    known = ("round_trees", "output_ids", "tree", "accepted_indices")
    return Foreign("rounds", trees, _recorded("rounds", trees), missing, _ignored(given, *known))


def _recorded(source: str, trees: list[ForeignTree]) -> AcceptanceRecord | None:
    """Acceptance by depth, where every tree came with its path."""
    counts = [len(tree.accept_index) - 1 for tree in trees if tree.accept_index is not None]
    return of_counts(source, counts) if len(counts) == len(trees) else None


# ---- retrieve arrays ----


def _arrays(given: dict[str, Any]) -> Foreign:
    trees, known = read_buffers(given)
    nodes = sum(tree.size for tree in trees)
    if nodes > MOST_NODES_IN_ALL:
        raise ForeignError(f"{nodes} nodes in all are too many: give fewer batch rows")
    return Foreign(
        "arrays", trees, _recorded("batch rows", trees), _lacking(trees[0]), _ignored(given, *known)
    )
