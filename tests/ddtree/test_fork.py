"""A fork goes on exactly where its parent's step began."""

from __future__ import annotations

import pytest
from fakes import FakeDrafter, FakeTarget, favour, follow

from ddtree.decoder import TreeDecoder
from ddtree.fork import Fork
from ddtree.prompt import SettingsError
from ddtree.replay import check_trace
from ddtree.settings import Settings
from ddtree.trace import Step, Trace
from ddtree.trace_file import load_trace

CYCLE = [1, 2, 3, 4, 5, 6]


def forked(parent: Trace, at: int, **settings: object) -> tuple[Trace, list[Step]]:
    before = [i for step in parent.steps[:at] if step.committed for i in step.committed.token_ids]
    target = FakeTarget(follow(CYCLE), 8)
    decoder = TreeDecoder(target, FakeDrafter(favour(*CYCLE)), Settings.model_validate(settings))
    fork = Fork("parent", at, (*parent.prompt.token_ids, *before))
    run = decoder.start(parent.prompt.text, fork)
    list(decoder.prefill(run))
    steps = []
    while run.finish_reason is None:
        steps.append(decoder.step(run))
    trace = decoder.head(run).model_copy(update={"steps": steps, "summary": decoder.summary(run)})
    assert check_trace(load_trace(trace.to_json().encode())) == []
    return trace, steps


def tokens(steps: list[Step]) -> list[int]:
    return [i for step in steps if step.committed for i in step.committed.token_ids]


@pytest.mark.parametrize("at", [0, 1, 2])
@pytest.mark.parametrize("method", ["ddtree", "chain", "autoregressive"])
def test_a_greedy_fork_with_any_settings_writes_what_its_parent_did(at: int, method: str) -> None:
    target = FakeTarget(follow(CYCLE), 8)
    decoder = TreeDecoder(target, FakeDrafter(favour(1, 2)), Settings(budget=3, max_new_tokens=6))
    list(decoder.decode("a"))
    parent = decoder.trace()
    assert len(parent.steps) >= 3 and parent.forked_from is None and "forked_from" not in parent.to_json()
    rest = tokens(parent.steps[at:])
    trace, steps = forked(parent, at, method=method, budget=5, max_new_tokens=len(rest))
    assert tokens(steps) == rest
    assert trace.forked_from is not None and trace.forked_from.model_dump() == {
        "run_id": "parent",
        "step": at,
    }
    assert steps[0].root == parent.steps[at].root.model_copy(update={"text": steps[0].root.text})
    assert trace.prompt.text == "a" and len(trace.prompt.texts) == len(trace.prompt.token_ids)


def test_a_fork_that_fits_no_longer_is_refused() -> None:
    target = FakeTarget(follow(CYCLE), 8)
    decoder = TreeDecoder(target, None, Settings(max_new_tokens=4))
    with pytest.raises(SettingsError, match="tokens"):
        decoder.start("a", Fork("x", 1, tuple([1] * target.max_context)))
