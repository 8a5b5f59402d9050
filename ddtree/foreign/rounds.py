"""Rounds of trees with their accepted paths: liranringel/ddtree's round_trees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ddtree.foreign.errors import ForeignError
from ddtree.foreign.trees import Fault, ForeignTree, aligned, parented, path_faults
from ddtree.foreign.values import ints

MOST_NODES_IN_ALL = 200_000
_MOST_TREES = 4096


def is_rounds(value: Any) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(each, dict) and isinstance(each.get("tree"), dict) for each in value)
    )


def read_rounds(rounds: Any, output_ids: Sequence[int] | None) -> tuple[list[ForeignTree], bool]:
    """(the trees; whether output_ids told their roots and bonus tokens). Raises ForeignError."""
    if not is_rounds(rounds):
        raise ForeignError('round_trees must be a list of {"accepted_indices": [...], "tree": {...}}')
    if len(rounds) > _MOST_TREES:
        raise ForeignError(f"{len(rounds)} rounds are too many: give at most {_MOST_TREES}")
    trees: list[ForeignTree] = []
    nodes = 0
    for number, each in enumerate(rounds):
        try:
            trees.append(_round(each))
        except ForeignError as error:
            raise ForeignError(f"round {number}: {error}") from None
        nodes += trees[-1].size
        if nodes > MOST_NODES_IN_ALL:
            raise ForeignError(f"more than {MOST_NODES_IN_ALL} nodes in all: give fewer rounds")
    start = None if output_ids is None else _where(output_ids, trees)
    if output_ids is None or start is None:
        return trees, False
    return _with_outputs(trees, output_ids, start), True


def _round(each: dict[str, Any]) -> ForeignTree:
    tree = each["tree"]
    name = next((n for n in ("node_token_ids", "token_ids", "tokens") if n in tree), None)
    if "parents" not in tree or name is None:
        raise ForeignError("tree needs parents and node_token_ids")
    parents, tokens, root = aligned(
        ints("parents", tree["parents"]).ravel().tolist(), ints(name, tree[name]).ravel().tolist()
    )
    depths = tree.get("node_depths", tree.get("depths"))
    found = parented(
        parents, tokens, root, None if depths is None else ints("node_depths", depths).ravel().tolist(), None
    )
    path = each.get("accepted_indices")
    faults: list[Fault] = []
    if path is not None:
        path = ints("accepted_indices", path).ravel().tolist()
        faults = path_faults(found, path)
    return found.tree(faults, token_ids=tokens, root_token=root, accept_index=None if faults else path)


def _emitted(tree: ForeignTree) -> list[int]:
    assert tree.accept_index is not None and tree.token_ids is not None
    return [tree.token_ids[node - 1] for node in tree.accept_index[1:]]


def _where(ids: Sequence[int], trees: list[ForeignTree]) -> int | None:
    """Where in `ids` the root of the first round stands: the one place from which every round's path and a
    bonus token each lead to the end; None where there is no such place or more than one. Only the last round
    may be cut by the end."""
    if any(tree.accept_index is None for tree in trees):
        return None
    paths = [_emitted(tree) for tree in trees]
    total = sum(len(path) + 1 for path in paths)
    earliest = len(ids) - 1 - total
    places = [
        start
        for start in range(max(earliest, 0), min(earliest + len(paths[-1]) + 1, len(ids)))
        if _continues(ids, start, paths)
    ]
    return places[0] if len(places) == 1 else None


def _continues(ids: Sequence[int], at: int, paths: Sequence[Sequence[int]]) -> bool:
    for path in paths:
        if at >= len(ids):
            return False
        inside = list(ids[at + 1 : at + 1 + len(path)])
        if inside != list(path[: len(inside)]):
            return False
        at += len(path) + 1
    return True


def _with_outputs(trees: list[ForeignTree], ids: Sequence[int], start: int) -> list[ForeignTree]:
    """Roots and bonus tokens as output_ids says them."""
    at, known = start, []
    for tree in trees:
        bonus = at + len(_emitted(tree)) + 1
        known.append(
            replace(
                tree,
                root_token=int(ids[at]),
                bonus_token_id=int(ids[bonus]) if bonus < len(ids) else None,
            )
        )
        at = bonus
    return known
