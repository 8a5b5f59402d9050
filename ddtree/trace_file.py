"""Reading a trace from bytes: every way a file can be wrong gets one line that says where."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pydantic_core
from pydantic import ValidationError

from ddtree.trace import CandidateRows, Step, Trace


class TraceError(ValueError):
    """A file that is no trace; `path` is the JSON path of the first fault ("" for the file as a whole)."""

    def __init__(self, message: str, path: str = "") -> None:
        super().__init__(f"{path}: {message}" if path else message)
        self.path = path


def load_trace(data: bytes) -> Trace:
    """The trace in `data`, UTF-8 JSON. Raises TraceError for anything whose parts do not fit together;
    whether its decisions can be re-derived is `ddtree.replay.check_trace`'s question."""
    _read(data)
    return _trace(data)


def load_traces(data: bytes) -> list[Trace]:
    """The trace in `data`, or those of a list of traces, which is how several runs are exported. Raises
    TraceError; the path of a fault in a list begins with the trace's place in it."""
    value = _read(data, many=True)
    if not isinstance(value, list):
        return [_trace(data)]
    return [_trace(pydantic_core.to_json(each), f"[{i}]") for i, each in enumerate(value)]


def _read(data: bytes, many: bool = False) -> object:
    """The JSON in `data`, which says that it is a trace, or with `many` perhaps a list of traces."""
    if not data.strip():
        raise TraceError("the file is empty; export a run to get a trace")
    if data[:2] == b"\x1f\x8b":
        raise TraceError("the file is gzip-compressed; unpack it first")
    if data[:2] in (b"\xff\xfe", b"\xfe\xff") or b"\0" in data[:4]:
        raise TraceError("the file is UTF-16 or UTF-32; a trace is UTF-8")
    try:
        value = pydantic_core.from_json(data, allow_inf_nan=False, cache_strings="keys")
    except ValueError as error:
        raise TraceError(f"not JSON: {error}") from None
    several = many and isinstance(value, list) and len(value) > 0
    for i, each in enumerate(value if several else [value]):
        _is_trace(each, f"[{i}]" if several else "")
    return value


def _is_trace(value: object, path: str) -> None:
    if not isinstance(value, dict) or value.get("format") != "ddtree-trace":
        raise TraceError('not a trace: the top level has no "format": "ddtree-trace"', path)
    if value.get("version") != 1:
        raise TraceError(
            f"version {value.get('version')!r} is not known here; this program reads version 1",
            f"{path}.version" if path else "version",
        )


def _trace(data: bytes, path: str = "") -> Trace:
    """The trace in `data`, which is JSON; `path` is where it stands in a list."""
    start = f"{path}." if path else ""
    try:
        trace = Trace.model_validate_json(data)
    except ValidationError as error:
        first = error.errors()[0]
        more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
        raise TraceError(first["msg"] + more, start + json_path(first["loc"])) from None
    for where, message in structure_faults(trace):
        raise TraceError(message, start + where)
    return trace


def json_path(loc: Sequence[int | str]) -> str:
    """`("steps", 3, "tree")` as `steps[3].tree`."""
    path = ""
    for part in loc:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else part
    return path


def structure_faults(trace: Trace) -> Iterator[tuple[str, str]]:
    """(path, message) for every index, length, order or path that cannot be, step by step."""
    vocab_size = trace.target.vocab_size
    yield from _ids_in_range("prompt.token_ids", trace.prompt.token_ids, vocab_size)
    yield from _lengths("prompt", {"token_ids": trace.prompt.token_ids, "texts": trace.prompt.texts})
    if not trace.prompt.token_ids:
        yield "prompt.token_ids", "a run has at least one prompt token"
    for i, step in enumerate(trace.steps):
        if step.index != i:
            yield f"steps[{i}].index", f"is {step.index}; steps are numbered from 0 without gaps"
        yield from step_faults(f"steps[{i}]", step, vocab_size)


def step_faults(path: str, step: Step, vocab_size: int) -> Iterator[tuple[str, str]]:
    """The faults of one step, each array against the tree's size."""
    yield from _ids_in_range(f"{path}.root.token_id", [step.root.token_id], vocab_size)
    if step.tree is None:
        if step.error is None:
            yield f"{path}.tree", "is null in a step that did not fail"
        return
    tree_ok = True
    for fault in _tree_faults(f"{path}.tree", step, vocab_size):
        tree_ok = False
        yield fault
    if not tree_ok:
        return
    yield from _sizes_of_stages(path, step)
    yield from _path_faults(path, step, vocab_size)


def _tree_faults(path: str, step: Step, vocab_size: int) -> Iterator[tuple[str, str]]:
    tree = step.tree
    assert tree is not None
    count = len(tree.token_ids)
    per_node = {name: getattr(tree, name) for name in type(tree).model_fields if name != "parents"}
    wrong = list(_lengths(path, per_node))
    yield from wrong
    if len(tree.parents) != count + 1:
        yield f"{path}.parents", f"has {len(tree.parents)} entries for {count} nodes and the root"
        return
    if wrong:
        return
    yield from _ids_in_range(f"{path}.token_ids", tree.token_ids, vocab_size)
    if tree.parents[0] != -1:
        yield f"{path}.parents[0]", f"is {tree.parents[0]}; the root's parent is -1"
    for node in range(1, count + 1):
        parent = tree.parents[node]
        if not 0 <= parent < node:
            yield (
                f"{path}.parents[{node}]",
                f"is {parent}; a parent comes before its child, 0 to {node - 1} here",
            )
            return
        depth = 1 if parent == 0 else tree.depths[parent - 1] + 1
        if tree.depths[node - 1] != depth:
            yield (
                f"{path}.depths[{node - 1}]",
                f"is {tree.depths[node - 1]}; its parent {parent} makes it {depth}",
            )


def _sizes_of_stages(path: str, step: Step) -> Iterator[tuple[str, str]]:
    assert step.tree is not None
    count = len(step.tree.token_ids)
    wanted = [
        ("retrieve", ("retrieve_index", "retrieve_next_token", "retrieve_next_sibling"), count + 1),
        ("target", ("probs", "raw_probs"), count),
        ("sampling", ("uniform_samples",), count + 1),
    ]
    for stage, names, size in wanted:
        part = getattr(step, stage)
        for name in names if part is not None else ():
            if len(getattr(part, name)) != size:
                yield (
                    f"{path}.{stage}.{name}",
                    f"has {len(getattr(part, name))} entries; this tree needs {size}",
                )
    if step.target is not None:
        for i, row in enumerate(step.target.rows):
            yield from _node_in_tree(f"{path}.target.rows[{i}].node", row.node, count)
    if step.draft is not None:
        yield from _row_sizes(f"{path}.draft.rows", step.draft.rows)


def _row_sizes(path: str, rows: CandidateRows) -> Iterator[tuple[str, str]]:
    """Ids, and links and origins where there are any, against the log-probabilities."""
    parts: dict[str, Sequence[Sequence[object]] | None] = {
        "top_token_ids": rows.top_token_ids,
        "child_rows": rows.child_rows,
        "origins": rows.origins,
    }
    for name, part in parts.items():
        if part is None:
            continue
        for i, (logs, entries) in enumerate(zip(rows.top_log_probs, part, strict=False)):
            if len(logs) != len(entries):
                yield f"{path}.{name}[{i}]", f"has {len(entries)} entries for {len(logs)} log_probs"
        if len(rows.top_log_probs) != len(part):
            yield path, f"{len(rows.top_log_probs)} rows of log_probs, {len(part)} of {name}"


def _path_faults(path: str, step: Step, vocab_size: int) -> Iterator[tuple[str, str]]:
    assert step.tree is not None
    count = len(step.tree.token_ids)
    for i, decision in enumerate(step.decisions or ()):
        yield from _node_in_tree(f"{path}.decisions[{i}].node", decision.node, count)
    if step.accept is not None:
        index = step.accept.accept_index
        where = f"{path}.accept.accept_index"
        if not index or index[0] != 0:
            yield where, "does not start at the root, node 0"
            return
        for i, node in enumerate(index):
            if not 0 <= node <= count:
                yield f"{where}[{i}]", f"is {node}; this tree has nodes 0 to {count}"
                return
            if i and step.tree.parents[node] != index[i - 1]:
                yield f"{where}[{i}]", f"is {node}, which is no child of {index[i - 1]}"
                return
        yield from _ids_in_range(f"{path}.accept.bonus_token_id", [step.accept.bonus_token_id], vocab_size)
    if step.committed is not None:
        yield from _ids_in_range(f"{path}.committed.token_ids", step.committed.token_ids, vocab_size)
        yield from _lengths(
            f"{path}.committed", {"token_ids": step.committed.token_ids, "texts": step.committed.texts}
        )


def _ids_in_range(path: str, token_ids: list[int], vocab_size: int) -> Iterator[tuple[str, str]]:
    for i, token_id in enumerate(token_ids):
        if not 0 <= token_id < vocab_size:
            where = path if path.endswith("_id") else f"{path}[{i}]"
            yield where, f"token id {token_id} is outside the vocabulary, 0 to {vocab_size - 1}"
            return


def _lengths(path: str, lists: Mapping[str, Sequence[object]]) -> Iterator[tuple[str, str]]:
    sizes = {name: len(values) for name, values in lists.items()}
    first, size = next(iter(sizes.items()))
    for name, other in sizes.items():
        if other != size:
            yield f"{path}.{name}", f"has {other} entries; {first} has {size}"


def _node_in_tree(path: str, node: int, count: int) -> Iterator[tuple[str, str]]:
    if not 0 <= node <= count:
        yield path, f"is {node}; this tree has nodes 0 to {count}"
