"""The decode loop: draft, build, encode, verify, sample, commit; every step is a trace step.

`TreeDecoder` is a step function over explicit state, a `Run` (ddtree/run.py). The prompt's
last token is the root of step 0, so every generated token is committed by a step.
"""

from __future__ import annotations

import datetime
import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext

import torch

from ddtree.autobudget import AutoBudget
from ddtree.describe import drafter_info, engine_info, target_info
from ddtree.drafters.base import DRAFT_TEMPERATURE, Context, Draft, Drafter, DraftFault, candidates_for
from ddtree.drafters.dflash import DFlashDrafter
from ddtree.drafters.hybrid import HybridDrafter
from ddtree.drafters.ngram import NgramDrafter
from ddtree.fork import Fork
from ddtree.prompt import SettingsError, check_prompt, encode_prompt
from ddtree.record import StageClock, StepRecord
from ddtree.retrieve import RetrieveArrays, compile_ddtree_retrieve
from ddtree.run import Run
from ddtree.sampling import TreeVerdict, coins, verify_tree, verify_tree_greedy
from ddtree.settings import FIXED_IN_A_RUN, MAX_BUDGET, DrafterName, Settings
from ddtree.static_pipeline import Pipeline, StaticMode, TotalClock, static_mode
from ddtree.target import Target
from ddtree.text import RunningText, TokenText
from ddtree.trace import (
    ForkedFrom,
    Prompt,
    Step,
    StepError,
    Summary,
    TokenizerInfo,
    Trace,
)
from ddtree.tree import DraftTree, build_ddtree_tree


class TreeDecoder:
    """Decodes with `target`, drafting with one of `drafters`; the n-gram drafter is always there. Beside a
    DFlash drafter stands the hybrid of both, the first choice unless it is given elsewhere.

    `drafters` stand in order of preference. `not_used` says why no trained drafter is among them. Settings
    may be changed between steps: `decoder.settings = decoder.settings.updated(budget=31)`.
    """

    def __init__(
        self,
        target: Target,
        drafters: Drafter | Sequence[Drafter] | None = None,
        settings: Settings | None = None,
        not_used: str | None = None,
        static: StaticMode | None = None,
    ) -> None:
        """static: how steps that a DFlash drafter drafts run as one sequence of device work (None: captured
        on CUDA, not at all on a CPU)."""
        given = [] if drafters is None else list(drafters) if isinstance(drafters, Sequence) else [drafters]
        kinds = {drafter.kind: drafter for drafter in given}
        if "ngram" not in kinds:
            given.append(NgramDrafter())
        if "dflash" in kinds and "hybrid" not in kinds:
            given.insert(0, HybridDrafter(kinds["dflash"]))
        self.target = target
        self.drafters: dict[DrafterName, Drafter] = {drafter.kind: drafter for drafter in given}
        self.not_used = not_used
        dflash = kinds.get("dflash")
        self._static_drafter = dflash if isinstance(dflash, DFlashDrafter) else None
        self._static = None
        if self._static_drafter is not None:
            self._static = static or static_mode(target)
        self.tokens = TokenText(target.tokenizer)
        self.taps = next((drafter.taps for drafter in given if drafter.taps), ())
        self._run: Run | None = None
        self._kept: list[Step] = []
        self._settings = Settings()
        self.settings = settings or Settings()

    # ---- settings ----

    @property
    def settings(self) -> Settings:
        return self._settings

    @settings.setter
    def settings(self, settings: Settings) -> None:
        """Raises SettingsError for a value this decoder cannot honour, or one that holds for a whole run."""
        if self._run is not None and self._run.finish_reason is None:
            for name in sorted(FIXED_IN_A_RUN):
                if getattr(settings, name) != getattr(self._settings, name):
                    raise SettingsError(
                        "not_live", f"{name} cannot change while a run goes on; start a new run", name
                    )
        self.resolve(settings)
        self._settings = settings

    def resolve(self, settings: Settings) -> Settings:
        """`settings` with drafter, block_size and chat chosen. Raises SettingsError."""
        fastest = next(iter(self.drafters)) if self._static is None else "dflash"
        name = settings.drafter or fastest
        if name not in self.drafters:
            there = ", ".join(self.drafters)
            why = f": {self.not_used}" if self.not_used else ""
            raise SettingsError(
                "bad_value", f"drafter {name} is not loaded{why} (there is: {there})", "drafter"
            )
        most = self.drafters[name].block_size
        size = settings.block_size or most
        if size > most:
            message = f"block_size {size} is more than the {most} that drafter {name} drafts; use 1 to {most}"
            raise SettingsError("bad_value", message, "block_size")
        has_template = self.target.tokenizer.chat_template is not None
        if settings.chat and not has_template:
            message = f"chat is on, but {self.target.name} has no chat template; turn chat off"
            raise SettingsError("bad_value", message, "chat")
        chat = has_template if settings.chat is None else settings.chat
        return settings.model_copy(update={"drafter": name, "block_size": size, "chat": chat})

    # ---- a run ----

    def start(self, prompt: str, fork: Fork | None = None) -> Run:
        """A run at its beginning, nothing computed yet; with `fork` it goes on from another run's step, and
        `prompt` is what that run's was typed as. Raises SettingsError (prompt_too_long, bad_value)."""
        settings = self.resolve(self._settings)
        if fork is None:
            token_ids = encode_prompt(self.target, prompt, settings)
        else:
            token_ids = list(fork.token_ids)
            check_prompt(self.target, token_ids, settings)
        seed = secrets.randbits(53) if settings.seed is None else settings.seed
        tokens = len(token_ids) + settings.max_new_tokens
        pipeline = None
        if self._static is not None and self._static_drafter is not None:
            pipeline = Pipeline.take(self.target, self._static_drafter, self._static, tokens)
            cache = pipeline.state.cache
        else:
            cache = self.target.new_cache(tokens + MAX_BUDGET + 1, self.taps)
        self._run = Run(
            created_at=datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds"),
            prompt=Prompt(text=prompt, token_ids=token_ids, texts=RunningText(self.tokens).push(token_ids)),
            settings=settings.model_copy(update={"seed": seed}),
            token_ids=list(token_ids),
            cache=cache,
            pipeline=pipeline,
            text=RunningText(self.tokens),
            auto=AutoBudget(self.target.times),
            forked_from=None if fork is None else ForkedFrom(run_id=fork.run_id, step=fork.step),
        )
        return self._run

    def prefill(self, run: Run) -> Iterator[float]:
        """Run the prompt without its last token, in chunks; yields the share done. Stop iterating to stop."""
        head = run.token_ids[:-1]
        chunks = self.target.prefill(run.cache, head) if head else iter(())
        while True:
            began = time.perf_counter()
            done = next(chunks, None)
            run.prefill_s += time.perf_counter() - began
            if done is None:
                return
            yield done / len(head)

    @torch.inference_mode()
    def step(self, run: Run) -> Step:
        """One round: commits at least one token, or fails and ends the run (the step's `error` says why)."""
        if run.finish_reason is not None:
            raise ValueError(f"the run has finished ({run.finish_reason}); start another")
        with nullcontext() if self.target.native is None else self.target.native.alone():
            step = self._static_step(run) or self._step(run)
        if run.finish_reason is not None:
            run.release()
        return step

    def _static_step(self, run: Run) -> Step | None:
        """The next step of the run's pipeline; None where there is none, or where the settings need another
        way and nothing was launched before they came."""
        if run.pipeline is None:
            return None
        clock = TotalClock()
        settings = self.resolve(self._settings).model_copy(update={"seed": run.settings.seed})
        wanted = settings if _is_static(settings) else None
        launched = run.pipeline.advance(wanted, run.token_ids, run.steps, _seed(settings))
        if launched is None:
            return None
        clock.device_s = launched.wait()
        record = StepRecord(
            self.tokens, launched.index, run.token_ids[-1], run.root_position, launched.settings
        )
        run.lossy |= launched.settings.lossy
        try:
            draft = launched.draft()
            tree, arrays = launched.tree()
            record.drafted(draft, tree, arrays)
            verdict = launched.verdict()
        except (DraftFault, ValueError) as fault:
            return self._fail(run, record, fault)
        committed = run.accept(tree, verdict, self.target.stop_token_ids)
        run.pipeline.committed(launched, run.root_position)
        rows = launched.output.target_rows
        record.sampled(rows, verdict, *launched.coins(), draft, along_path=True)
        step = record.finish(committed, run.texts(committed), clock)
        run.steps += 1
        run.step_s += clock.total_s
        return step

    def _step(self, run: Run) -> Step:
        settings = self.resolve(self._settings).model_copy(update={"seed": run.settings.seed})
        auto = settings.budget == "auto"
        if auto:
            self._measure_passes(run)
            settings = settings.model_copy(update={"budget": run.auto.ceiling})
        clock = StageClock()
        record = StepRecord(self.tokens, run.steps, run.token_ids[-1], run.root_position, settings)
        run.lossy |= settings.lossy
        try:
            draft = self._draft(run, settings)
            clock.mark("draft")
            tree = self._build(draft, settings)
            if auto:
                tree = self._cut(run, record, draft, tree)
            clock.mark("build")
            arrays = compile_ddtree_retrieve(tree)
            clock.mark("encode")
            record.drafted(draft, tree, arrays)
            candidates = torch.cat([torch.tensor([run.token_ids[-1]]), tree.token_ids])
            logits = self._verify(run, tree, candidates)
            clock.mark("verify")
            uniform, final = coins(_seed(settings), run.steps, len(candidates))
            verdict = _walk(logits, candidates, arrays, uniform, final, settings)
            clock.mark("sample")
        except (DraftFault, ValueError) as fault:  # the sampler names the faulty row
            return self._fail(run, record, fault)
        committed = self._commit(run, tree, verdict)
        clock.mark("commit")
        record.sampled(logits, verdict, uniform, final, draft)
        step = record.finish(committed, run.texts(committed), clock)
        run.steps += 1
        run.step_s += clock.total_s
        assert step.timing_ms is not None
        run.auto.saw(_source(draft), tree.log_weights.numpy(), verdict.accept_index, step.timing_ms)
        return step

    def decode(self, prompt: str) -> Iterator[Step]:
        """The steps of a whole run on `prompt`; `trace()` afterwards (or in between) is the run so far."""
        run = self.start(prompt)
        self._kept = []
        try:
            for _ in self.prefill(run):
                pass
            while run.finish_reason is None:
                step = self.step(run)
                self._kept.append(step)
                yield step
        finally:
            run.cancel()

    @property
    def started(self) -> bool:
        """Whether there is a run that `trace()` can tell of."""
        return self._run is not None

    def trace(self) -> Trace:
        """The trace of the run that `decode` began last."""
        if self._run is None:
            raise ValueError("nothing has been decoded yet; call decode(prompt) first")
        summary = None if self._run.finish_reason is None else self.summary(self._run)
        return self.head(self._run).model_copy(update={"steps": list(self._kept), "summary": summary})

    # ---- the stages ----

    def _draft(self, run: Run, settings: Settings) -> Draft | None:
        """Candidate rows, or None where nothing is drafted. A block never leaves the target's context."""
        room = self.target.max_context - 1 - run.root_position
        block_size = min(settings.block_size or 1, room + 1)
        if settings.method == "autoregressive" or settings.budget == 0 or block_size < 2:
            return None
        assert settings.drafter is not None and settings.budget != "auto"
        drafter = self.drafters[settings.drafter]
        if settings.drafter not in run.drafter_states:
            run.drafter_states[settings.drafter] = drafter.new_state(run.cache.capacity)
        return drafter.draft(
            run.drafter_states[settings.drafter],
            Context(run.token_ids, run.cache.features, settings.temperature),
            block_size=block_size,
            candidates=candidates_for(settings.budget, self.target.vocab_size),
            temperature=DRAFT_TEMPERATURE,
        )

    @staticmethod
    def _build(draft: Draft | None, settings: Settings) -> DraftTree:
        """The best tree of the budget; a chain is the tree whose rows have one candidate."""
        if draft is None:
            return build_ddtree_tree(torch.empty(0, 1), torch.empty(0, 1, dtype=torch.int64), None, 0)
        assert settings.budget != "auto"
        width = 1 if settings.method == "chain" else draft.top_log_probs.shape[1]
        child_rows = None if draft.child_rows is None else draft.child_rows[:, :width]
        return build_ddtree_tree(
            draft.top_log_probs[:, :width], draft.top_token_ids[:, :width], child_rows, settings.budget
        )

    @staticmethod
    def _cut(run: Run, record: StepRecord, draft: Draft | None, tree: DraftTree) -> DraftTree:
        """Budget "auto": of the tree that was built at the ceiling as much as promises most, on record."""
        budget, choice = run.auto.choose(_source(draft), tree.log_weights.numpy(), tree.budget)
        record.chose(budget, choice)
        return tree.first(budget)

    def _measure_passes(self, run: Run) -> None:
        """What the target's passes cost by their rows, once for each target; counted as prefill's time."""
        if self.target.times.measured:
            return
        began = time.perf_counter()

        def run_pass(rows: int) -> None:
            token_ids = torch.full((rows,), run.token_ids[-1])
            positions = torch.full((rows,), run.root_position)
            logits = self.target.verify(run.cache, token_ids, positions, torch.eye(rows, dtype=torch.bool))
            logits[-1, 0].item()  # waits for a device

        self.target.times.measure(run_pass)
        run.prefill_s += time.perf_counter() - began

    def _verify(self, run: Run, tree: DraftTree, candidates: torch.Tensor) -> torch.Tensor:
        positions = torch.zeros(len(candidates), dtype=torch.int64)
        positions[1:] = tree.depths
        positions += run.root_position
        return self.target.verify(run.cache, candidates, positions, tree.visibility())

    def _commit(self, run: Run, tree: DraftTree, verdict: TreeVerdict) -> list[int]:
        """Take over what is accepted, in the target's cache as well."""
        committed = run.accept(tree, verdict, self.target.stop_token_ids)
        self.target.commit(run.cache, verdict.accept_index[: len(committed)])
        return committed

    def _fail(self, run: Run, record: StepRecord, fault: Exception) -> Step:
        run.finish_reason = "error"
        if isinstance(fault, DraftFault):
            return record.failed(StepError(code="draft_fault", message=str(fault), depth=fault.depth))
        return record.failed(StepError(code="target_fault", message=str(fault)))

    # ---- what the trace says of the run ----

    def head(self, run: Run) -> Trace:
        """The run's trace without steps and summary."""
        assert run.settings.drafter is not None  # resolved at the start
        drafter = self.drafters[run.settings.drafter]
        return Trace(
            created_at=run.created_at,
            engine=engine_info(self.target),
            target=target_info(self.target),
            drafter=drafter_info(drafter, self.not_used),
            tokenizer=TokenizerInfo(name=self.target.name, vocab_size=len(self.target.tokenizer)),
            stop_token_ids=list(self.target.stop_token_ids),
            prompt=run.prompt,
            settings=run.settings,
            forked_from=run.forked_from,
            steps=[],
            summary=None,
        )

    def summary(self, run: Run) -> Summary:
        """The counters so far."""
        return Summary(
            finish_reason=run.finish_reason or "cancelled",
            steps=run.steps,
            committed=run.committed,
            accepted_drafts=run.accepted_drafts,
            tau=run.committed / run.steps if run.steps else None,
            tokens_per_second=run.committed / run.step_s if run.step_s else None,
            wall_s=run.prefill_s + run.step_s,
            prefill_s=run.prefill_s,
            lossy=run.lossy,
        )


def _source(draft: Draft | None) -> DrafterName | None:
    return None if draft is None else draft.source


def _is_static(settings: Settings) -> bool:
    """Whether a static step can do it. N-grams are looked up on the host, and so is the budget "auto"."""
    if settings.budget == "auto":
        return False
    return settings.drafter == "dflash" or settings.method == "autoregressive" or settings.budget == 0


def _seed(settings: Settings) -> int:
    assert settings.seed is not None
    return settings.seed


def _walk(
    logits: torch.Tensor,
    candidates: torch.Tensor,
    arrays: RetrieveArrays,
    uniform: torch.Tensor,
    final: float,
    settings: Settings,
) -> TreeVerdict:
    """Walk the tree with the target's rows. Raises ValueError for a faulty row."""
    tree = (candidates, arrays.retrieve_next_token, arrays.retrieve_next_sibling)
    if settings.greedy:  # thresholds change nothing: each probability is 0 or 1
        return verify_tree_greedy(logits, *tree)
    return verify_tree(
        logits,
        *tree,
        temperature=settings.temperature,
        top_k=settings.top_k,
        top_p=settings.top_p,
        coins=uniform,
        final_coin=final,
        threshold_single=settings.threshold_single,
        threshold_acc=settings.threshold_acc,
    )
