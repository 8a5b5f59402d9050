"""The static step against the decode loop: the same tokens, trees, coins and verdicts, with no look at the
device in between."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from devices import DEVICES, HAS_CUDA, needs_cuda
from static_runs import (
    LETTERS,
    PADDED,
    SMALL,
    decode,
    depths,
    in_every_mode,
    of_step,
    tiny_pair,
    tokens,
)
from tiny_drafters import random_model
from tiny_models import BASE, NARROW, WINDOW
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ddtree import loading
from ddtree.drafters import dflash
from ddtree.drafters.dflash import DFlashDrafter
from ddtree.replay import check_trace
from ddtree.settings import Settings
from ddtree.static_pipeline import StaticMode
from ddtree.static_step import BUCKETS, Plan, StaticState, StaticStep, plan_step, static_topk
from ddtree.target import Target
from ddtree.topk import topk_log_softmax
from ddtree.trace import Trace
from ddtree.trace_file import load_trace

RUNS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "greedy, large": {"budget": 100},
    "sampled": {"temperature": 2.0, "budget": 100},
    "filtered": {"temperature": 1.5, "top_k": 8, "top_p": 0.9, "budget": 31},
    "lossy": {"temperature": 1.0, "threshold_single": 0.5, "threshold_acc": 0.8},
    "chain": {"method": "chain", "temperature": 1.2},
    "greedy chain": {"method": "chain", "budget": 3},
    "short block": {"block_size": 3, "temperature": 1.0, "budget": 40},
    "block of one": {"block_size": 1},
    "no nodes": {"budget": 0, "temperature": 1.0},
    "autoregressive": {"method": "autoregressive", "temperature": 1.0},
}


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Operations this small wait long for a second thread beside other processes."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module", params=DEVICES)
def pair(request: pytest.FixtureRequest) -> tuple[Target, DFlashDrafter]:
    return tiny_pair(device=request.param)


def settings(**changes: Any) -> Settings:
    return Settings(**{"drafter": "dflash", "seed": 2**63 + 17, "max_new_tokens": 16, **changes})


def assert_same(static: Trace, loop: Trace) -> None:
    assert tokens(static) == tokens(loop)
    assert len(static.steps) == len(loop.steps)
    for one, other in zip(static.steps, loop.steps, strict=True):
        assert of_step(one) == of_step(other)
        assert (one.draft is None) == (other.draft is None)
        if one.draft is not None and other.draft is not None:
            assert one.draft.rows.top_token_ids == other.draft.rows.top_token_ids
            for mine, theirs in zip(
                one.draft.rows.top_log_probs, other.draft.rows.top_log_probs, strict=True
            ):
                assert mine == pytest.approx(theirs, abs=1e-3)
    left_out = {"tokens_per_second", "wall_s", "prefill_s"}
    summaries = [trace.summary.model_dump(exclude=left_out) for trace in (static, loop) if trace.summary]
    assert len(summaries) == 2 and summaries[0] == summaries[1]
    assert check_trace(load_trace(static.to_json().encode())) == []


# ---- equal to the loop ----


@in_every_mode
@pytest.mark.parametrize("name", RUNS)
def test_a_run_is_the_decode_loops(pair: tuple[Target, DFlashDrafter], mode: StaticMode, name: str) -> None:
    given = settings(**RUNS[name])
    assert_same(decode(pair, mode, given), decode(pair, None, given))


def test_paths_of_many_lengths_are_compared(pair: tuple[Target, DFlashDrafter]) -> None:
    assert depths(decode(pair, PADDED, settings(**RUNS["sampled"]))) >= {0, 1, 2}


@in_every_mode
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("qwen3", NARROW),
        ("mistral", {**BASE, "sliding_window": WINDOW}),
        (
            "gemma3_text",
            {**NARROW, "sliding_window": WINDOW, "layer_types": ["sliding_attention", "full_attention"] * 2},
        ),
    ],
    ids=["qwen3", "one window", "alternating windows"],
)
def test_so_it_is_with_other_families(mode: StaticMode, kind: str, options: dict[str, Any]) -> None:
    pair = tiny_pair(kind, "cuda" if HAS_CUDA else "cpu", **{**options, "vocab_size": LETTERS})
    given = settings(budget=20)
    assert_same(decode(pair, mode, given), decode(pair, None, given))


@pytest.mark.parametrize(
    "changes",
    [
        {"direct_path": True},
        {"slots": "heads", "slot_intermediate_size": 32},
        {"direct_path": True, "slots": "heads", "slot_intermediate_size": 32},
    ],
    ids=["direct path", "slot heads", "both"],
)
def test_so_it_is_with_other_drafters(pair: tuple[Target, DFlashDrafter], changes: dict[str, Any]) -> None:
    config = dataclasses.replace(SMALL, **changes)
    drafter = DFlashDrafter("other", config, random_model(config), pair[0])
    given = settings(temperature=1.0, budget=40)
    assert_same(decode((pair[0], drafter), PADDED, given), decode((pair[0], drafter), None, given))


def test_so_it_is_with_a_drafter_of_fewer_tokens(pair: tuple[Target, DFlashDrafter]) -> None:
    ids = torch.tensor([0, 2, 3, 5, 7, 8, 11])
    head = torch.nn.Linear(64, len(ids), bias=False)
    with torch.no_grad():
        head.weight.copy_(torch.randn(head.weight.shape, generator=torch.Generator().manual_seed(4)))
    drafter = DFlashDrafter("few", SMALL, random_model(SMALL), pair[0], head, ids)
    given = settings(temperature=1.3, budget=20)
    static = decode((pair[0], drafter), PADDED, given)
    assert_same(static, decode((pair[0], drafter), None, given))
    proposed = {token for step in static.steps if step.tree for token in step.tree.token_ids}
    assert proposed <= set(ids.tolist())


@in_every_mode
@pytest.mark.parametrize("prompt", ["a", "abcabcabc" * 20])
def test_so_it_is_after_prompts_of_one_and_of_many_tokens(
    pair: tuple[Target, DFlashDrafter], mode: StaticMode, prompt: str
) -> None:
    given = settings(budget=7, max_new_tokens=20)
    assert_same(decode(pair, mode, given, prompt=prompt), decode(pair, None, given, prompt=prompt))


def test_a_block_does_not_leave_the_context(pair: tuple[Target, DFlashDrafter]) -> None:
    """Up to the last token of the context: nodes beyond it are in no tree."""
    most = pair[0].max_context
    prompt = "abcdefghijkl" * (most // 12)
    given = settings(budget=20, max_new_tokens=most - len(prompt) or 4, temperature=1.0)
    prompt = prompt[: most - given.max_new_tokens]
    static = decode(pair, PADDED, given, prompt=prompt)
    assert tokens(static) == tokens(decode(pair, None, given, prompt=prompt))
    assert check_trace(static) == []
    deepest = [step.root.position + max(step.tree.depths, default=0) for step in static.steps if step.tree]
    assert max(deepest) == most - 1


# ---- the shape of things ----


def test_plans_are_padded_to_buckets_and_share_them() -> None:
    def rows(**changes: Any) -> tuple[int, int]:
        plan, budget = plan_step(settings(**{"block_size": 6, **changes}), 50, padded=True)
        return plan.rows, budget

    assert rows(budget=0) == (1, 0)
    assert rows(budget=7) == (8, 7)
    assert rows(budget=8) == (16, 8)
    assert rows(budget=255) == (256, 255)
    assert rows(budget=300) == (301, 300)
    assert rows(budget=300, method="chain") == (8, 5)
    assert rows(method="autoregressive") == (1, 0)
    assert rows(block_size=1) == (1, 0)
    assert plan_step(settings(block_size=6, budget=8), 50, padded=False)[0].rows == 9
    one, other = (plan_step(settings(block_size=6, budget=budget), 50, padded=True)[0] for budget in (8, 15))
    assert one == other  # the budget is no part of a graph
    assert BUCKETS[-1] == 256


def test_the_likeliest_tokens_are_the_kernels_ties_included() -> None:
    generator = torch.Generator().manual_seed(3)
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        logits = (4 * torch.randn(6, 300, generator=generator)).round().div(2).to(dtype)
        logits[1, ::3] = -0.0
        logits[1, 1::3] = 0.0
        logits[2, 5:] = -torch.inf
        for k in (1, 7, 40, 300):
            log_probs, token_ids = static_topk(logits, k, 1.0)
            expected_log_probs, expected_ids = topk_log_softmax(logits, k)
            assert token_ids.equal(expected_ids)
            torch.testing.assert_close(log_probs, expected_log_probs, rtol=1e-5, atol=1e-5)
            assert (log_probs <= 0).all()


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_a_row_without_a_softmax_is_not_a_number(bad: float) -> None:
    logits = torch.zeros(3, 20)
    logits[1, 4] = bad
    log_probs, _ = static_topk(logits, 5, 1.0)
    assert log_probs[1].isnan().all() and not log_probs[[0, 2]].isnan().any()


# ---- nothing asks the device ----

ASKING = {
    "_local_scalar_dense",
    "nonzero",
    "masked_select",
    "_unique2",
    "equal",
    "is_nonzero",
    "repeat_interleave",  # with counts in a tensor; others are made of other operators
}
HOST_METHODS = ("tolist", "item", "numpy", "cpu", "__bool__", "__int__", "__float__", "__index__")


class NoLooks(TorchDispatchMode):
    """Fails for operators whose result, or its shape, the host must wait for."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen += 1
        name = func.name().partition("::")[2].partition(".")[0]
        assert name not in ASKING, f"{func.name()} waits for the device"
        if name == "index":
            assert all(i is None or i.dtype != torch.bool for i in args[1]), "a mask's index waits"
        return func(*args, **(kwargs or {}))


@contextmanager
def no_looks(monkeypatch: pytest.MonkeyPatch) -> Iterator[NoLooks]:
    def forbidden(name: str) -> Any:
        def method(*_: Any, **__: Any) -> Any:
            raise AssertionError(f"Tensor.{name} waits for the device")

        return method

    with monkeypatch.context() as patch, NoLooks() as mode:
        for name in HOST_METHODS:
            patch.setattr(torch.Tensor, name, forbidden(name))
        yield mode


def prepared(pair: tuple[Target, DFlashDrafter], plan: Plan, capacity: int = 128) -> StaticStep:
    state = StaticState(*pair, capacity)
    with torch.inference_mode():
        list(pair[0].prefill(state.cache, [3, 1, 4, 1, 5]))
        state.attach(9, 5, 0, 7)
        state.budget.fill_(plan.rows - 1)
    step = StaticStep(pair[0], state)
    step.prepare(plan)
    return step


PLANS = [
    Plan(16, 5, 12, False, (1.0, 0, 1.0), (1.0, 1.0)),
    Plan(8, 5, 12, True, (0.0, 0, 1.0), (1.0, 1.0)),
    Plan(1, 0, 0, False, (0.8, 5, 0.9), (1.0, 1.0)),
]


def plain(kind: str = "llama", **options: Any) -> tuple[Target, DFlashDrafter]:
    """Modules as a GPU runs them: nothing repacked, no native pass."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (dflash, loading):
            patch.setattr(module, "pack_model", lambda _: [])
            patch.setattr(module, "merge_projections", lambda _: None)
        pair = tiny_pair(kind, **options)
    pair[0].native = None
    return pair


@pytest.fixture(scope="module")
def plain_pair() -> tuple[Target, DFlashDrafter]:
    return plain()


@pytest.mark.parametrize("plan", PLANS, ids=["tree", "chain", "autoregressive"])
def test_a_step_never_asks_the_device(
    plain_pair: tuple[Target, DFlashDrafter], plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = prepared(plain_pair, plan)
    with no_looks(monkeypatch) as mode:
        for _ in range(2):
            output = step(plan)
    assert mode.seen > 100
    assert int(step.state.step) == 2 and int(step.state.length) >= 7
    assert output.path.shape == (plan.rows,)


@needs_cuda
@pytest.mark.parametrize("plan", PLANS, ids=["tree", "chain", "autoregressive"])
def test_on_a_gpu_a_step_never_waits(plan: Plan) -> None:
    step = prepared(tiny_pair(device="cuda"), plan)
    step(plan)  # what libraries set up once
    torch.cuda.set_sync_debug_mode("error")
    try:
        step(plan)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_the_watch_sees_a_look(monkeypatch: pytest.MonkeyPatch) -> None:
    tensor = torch.ones(3)
    looks = [
        lambda: tensor.nonzero(),
        lambda: tensor[tensor > 0],
        lambda: bool(tensor[0]),
        lambda: tensor.tolist(),
        lambda: torch.repeat_interleave(tensor, torch.tensor([1, 2, 3])),
    ]
    for look in looks:
        with no_looks(monkeypatch), pytest.raises(AssertionError, match="wait"):
            look()


@pytest.mark.parametrize("plan", PLANS, ids=["tree", "chain", "autoregressive"])
def test_shapes_do_not_depend_on_values(plain_pair: tuple[Target, DFlashDrafter], plan: Plan) -> None:
    """On fake tensors, which have no values, every shape comes out as it does on real ones."""
    step = prepared(plain_pair, plan)
    real = step(plan)
    with FakeTensorMode(allow_non_fake_inputs=True):
        fake = step(plan)
    for name, one, other in zip(real._fields, fake, real, strict=True):
        assert (one.shape, one.dtype) == (other.shape, other.dtype), name


class NoHostTensors(TorchDispatchMode):
    """Fails where an operator reads or writes host memory: on a GPU that is a copy that may wait."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves((args, kwargs, result)):
            assert not (isinstance(leaf, torch.Tensor) and leaf.is_cpu), f"{func.name()} touches the host"
        return result


@pytest.mark.parametrize("kind", ["llama", "gemma3_text"])
def test_a_step_reads_nothing_from_the_host(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the meta device, which has shapes and no values, as on any that is not the host's."""
    windows = {"sliding_window": WINDOW, "layer_types": ["sliding_attention", "full_attention"] * 2}
    target, drafter = plain(kind, **(windows if kind == "gemma3_text" else {}))
    meta = torch.device("meta")
    for module in (target.model, drafter.model):
        module.to(meta)
    monkeypatch.setattr(target, "device", meta)
    monkeypatch.setattr(drafter, "_device", meta)
    step = StaticStep(target, StaticState(target, drafter, 128))
    for plan in PLANS:
        step.prepare(plan)
        with NoHostTensors():
            output = step(plan)
        assert output.target_rows.shape == (plan.path_rows, LETTERS)


def test_all_but_the_targets_modules_is_one_graph_to_torch_compile(
    plain_pair: tuple[Target, DFlashDrafter],
) -> None:
    plan = PLANS[0]
    logits = torch.randn(plan.rows, LETTERS, generator=torch.Generator().manual_seed(1))
    features = torch.randn(plan.rows, 3 * 64, generator=torch.Generator().manual_seed(2))

    def around_the_target(step: StaticStep) -> tuple[torch.Tensor, ...]:
        log_probs, token_ids, _ = step.draft(plan)
        fields, retrieve, visible, _ = step.build(plan, log_probs, token_ids)
        drawn = step.coins(plan)
        walk = step.sample(plan, logits, fields, retrieve, drawn)
        step.commit(plan, walk, features)
        return fields, retrieve, visible, *drawn, *walk

    plain, compiled = prepared(plain_pair, plan), prepared(plain_pair, plan)
    with torch.no_grad():
        whole = torch.compile(lambda: around_the_target(compiled), fullgraph=True, backend="eager")
        for one, other in zip(whole(), around_the_target(plain), strict=True):
            assert one.equal(other)
    assert compiled.state.length.equal(plain.state.length) and compiled.state.root.equal(plain.state.root)
