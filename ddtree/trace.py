"""The trace: what a run did, as one JSON object. The file format, the wire and Python share these models.

JSON has no infinities: null in a list of log-probabilities reads as -inf. Arrays are as long as the tree
(N nodes) or N + 1 with the root, never padded. `Trace.to_json` is the one way a trace is written, so that
export, import, export is byte-identical.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from ddtree.settings import DrafterName, Settings

LogProb = float | None
Origin = Literal["dflash", "ngram"]
FinishReason = Literal["stop", "length", "cancelled", "error"]


class TraceModel(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


# ---- a step, in the order in which it happens ----


class Root(TraceModel):
    """Node 0: the last committed token."""

    token_id: int = Field(ge=0)
    text: str
    position: int = Field(ge=0, description="index in the sequence, prompt included")


class CandidateRows(TraceModel):
    """The candidate rows the tree used, each cut one entry after the last used: enough to rebuild the tree.

    Rows keep their index; a row that was not reached is empty. `child_rows[row][rank]` is the row of that
    candidate's own children (-1: none); null where it is the next row for all (row = depth - 1). `origins`
    says who proposed a candidate, of a hybrid's the one with the larger share of it; null where the draft's
    source did.
    """

    top_log_probs: list[list[LogProb]]
    top_token_ids: list[list[int]]
    child_rows: list[list[int]] | None = None
    origins: list[list[Origin]] | None = None


class Draft(TraceModel):
    source: DrafterName
    temperature: float = Field(
        description="the drafter's logits were divided by it, a hybrid's before they were mixed"
    )
    rows: CandidateRows


class Tree(TraceModel):
    """Nodes 1..N in the order they were added; `parents` alone starts with the root's -1."""

    token_ids: list[int]
    texts: list[str]
    parents: list[int]
    depths: list[int]
    ranks: list[int] = Field(description="index in the candidate row the node was taken from")
    row: list[int] = Field(description="the candidate row the node was taken from")
    log_weights: list[float] = Field(
        description="sum of log-probabilities along the path, float64, natural log"
    )
    draft_log_probs: list[float]
    origin: list[Origin] = Field(description="who proposed the node")


class Retrieve(TraceModel):
    """EAGLE's arrays, root included: first child, next sibling, -1 for none."""

    retrieve_index: list[int]
    retrieve_next_token: list[int]
    retrieve_next_sibling: list[int]


class TargetRow(TraceModel):
    """The target's distribution at one visited node, beside the drafter's."""

    node: int = Field(ge=0)
    token_ids: list[int] = Field(description="the likeliest tokens, likeliest first")
    texts: list[str]
    probs: list[float] = Field(description="in the distribution sampled from (one-hot at temperature 0)")
    raw_probs: list[float] = Field(description="at temperature 1")
    draft_token_ids: list[int] = Field(
        description="the drafter's likeliest tokens here; empty: it had no row"
    )
    draft_texts: list[str]
    draft_probs: list[float]
    entropy: float = Field(description="nats, at temperature 1")
    total_variation: float | None = Field(
        description="between target and drafter at temperature 1; null where the drafter has no whole row: "
        "an n-gram's, a hybrid's below its DFlash block"
    )


class TargetScores(TraceModel):
    """Node i's probability given its parent; null where the parent was not visited."""

    probs: list[float | None]
    raw_probs: list[float | None]
    rows: list[TargetRow]


class Sampling(TraceModel):
    uniform_samples: list[float] = Field(description="a coin per node, root included, in [0, 1)")
    final_uniform: float
    threshold_single: float
    threshold_acc: float
    rule: Literal["greedy", "target_only"]


class Decision(TraceModel):
    """A child that the walk tried: accepted when prob > 0 and (coin < cumulative / threshold_acc or
    prob >= threshold_single)."""

    node: int
    prob: float
    cumulative: float
    coin: float
    verdict: Literal["accepted", "rejected"]


class Accept(TraceModel):
    accept_index: list[int] = Field(description="the walk's nodes, root first")
    accept_token_num: int = Field(description="accepted drafts: root and bonus not counted")
    bonus_token_id: int
    bonus_text: str
    bonus_source: Literal["full_row", "residual", "argmax", "last_tried"] = Field(
        description="the whole row after a full path; the row minus the rejected; greedy; no mass left"
    )
    bonus_prob: float = Field(description="in the whole row sampled from")
    bonus_cumulative: float = Field(description="the running sum of what is left, at the bonus token")
    residual_mass: float = Field(
        description="the running sum's own end: what the final coin is multiplied with"
    )
    bonus_draft_rank: int | None = Field(
        description="its index in the drafter's candidate row, null: not in it"
    )


class Committed(TraceModel):
    """What the step added to the text: the accepted path and the bonus, cut at a stop token or the limit."""

    token_ids: list[int]
    texts: list[str] = Field(description="concatenated over the steps they are the text")


class Timing(TraceModel):
    """Milliseconds; null stages where one graph runs them all."""

    draft: float | None
    build: float | None
    encode: float | None
    verify: float | None
    sample: float | None
    commit: float | None
    other: float | None
    total: float


class AutoChoice(TraceModel):
    """Of a step whose budget was "auto": what the number in its settings was chosen from."""

    ceiling: int = Field(ge=0, description="the largest budget looked at; 0: nothing was drafted")
    emitted: float = Field(description="tokens expected of the step, bonus included")
    ms: float = Field(description="time expected of the step")


class StepError(TraceModel):
    code: str
    message: str
    depth: int | None = None


class Step(TraceModel):
    """One round of draft, build, encode, verify, sample, commit. What comes after a failure is null; `draft`
    is null when nothing was drafted (method autoregressive, budget 0)."""

    index: int = Field(ge=0)
    root: Root
    settings: Settings = Field(description='those in force; for budget "auto" the number used')
    auto: AutoChoice | None = Field(
        None,
        description='left out where the budget was not "auto"',
        exclude_if=lambda value: value is None,
    )
    draft: Draft | None = None
    tree: Tree | None = None
    retrieve: Retrieve | None = None
    target: TargetScores | None = None
    sampling: Sampling | None = None
    decisions: list[Decision] | None = None
    accept: Accept | None = None
    committed: Committed | None = None
    timing_ms: Timing | None = None
    error: StepError | None = None

    @field_validator("settings")
    @classmethod
    def _budget_is_a_number(cls, settings: Settings) -> Settings:
        if settings.budget == "auto":
            raise ValueError('budget is "auto"; a step records the number used')
        return settings

    @property
    def budget(self) -> int:
        """Most nodes the tree could have."""
        assert self.settings.budget != "auto"
        return self.settings.budget


# ---- the run ----


class Engine(TraceModel):
    versions: dict[str, str]
    device: str
    dtype: str
    threads: int
    kernels: str = Field(description="the instruction set the kernels run on")


class TargetInfo(TraceModel):
    name: str
    vocab_size: int
    num_layers: int
    hidden_size: int
    max_context: int
    notes: list[str] = Field(
        default=[], description="what this run does not honour, and what is not repacked"
    )


class DrafterInfo(TraceModel):
    name: str | None
    kind: DrafterName | None
    block_size: int | None
    not_used: str | None = Field(None, description="why no trained drafter is used, in a sentence")


class TokenizerInfo(TraceModel):
    name: str
    vocab_size: int


class Prompt(TraceModel):
    text: str = Field(description="what the user typed")
    token_ids: list[int]
    texts: list[str]


class Summary(TraceModel):
    finish_reason: FinishReason
    steps: int
    committed: int
    accepted_drafts: int
    tau: float | None = Field(description="committed / steps, pooled, bonus included")
    tokens_per_second: float | None = Field(description="committed / time inside steps")
    wall_s: float = Field(
        description="seconds inside prefill and steps; waiting, pace and streaming left out"
    )
    prefill_s: float
    lossy: bool


class ForkedFrom(TraceModel):
    """The run that this one continues: its prompt is that run's, and what was committed before `step`."""

    run_id: str
    step: int = Field(ge=0)


class Trace(TraceModel):
    format: Literal["ddtree-trace"] = "ddtree-trace"
    version: Literal[1] = 1
    created_at: str
    engine: Engine
    target: TargetInfo
    drafter: DrafterInfo
    tokenizer: TokenizerInfo
    stop_token_ids: list[int]
    prompt: Prompt
    settings: Settings
    forked_from: ForkedFrom | None = Field(
        None, description="where this run was forked from another; left out of a run that was not"
    )
    steps: list[Step]
    summary: Summary | None = Field(description="null while the run goes on")

    def to_json(self) -> str:
        """The trace as its file: one canonical spelling, UTF-8, no NaN, no Infinity."""
        return self.model_dump_json(exclude={"forked_from"} if self.forked_from is None else None)
