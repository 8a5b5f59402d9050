"""What a step did, put into the trace's models: the last part of a step, and no decision is made here."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from typing import Any, Literal

import torch

from ddtree import trace
from ddtree.drafters.base import Draft
from ddtree.observe import RowView, observe_rows
from ddtree.retrieve import RetrieveArrays
from ddtree.sampling import TreeVerdict
from ddtree.settings import Settings
from ddtree.text import TokenText
from ddtree.tree import DraftTree

SHOWN_TOKENS = 8
"""Likeliest tokens kept of a visited row, the target's and the drafter's."""

Stage = Literal["draft", "build", "encode", "verify", "sample", "commit"]


class StageClock:
    """Wall time of each stage: `mark` ends the stage that went before it."""

    def __init__(self) -> None:
        self.began = self._last = time.perf_counter()
        self._stages: dict[str, float] = {}
        self.total_s = 0.0

    def mark(self, stage: Stage) -> None:
        now = time.perf_counter()
        self._stages[stage] = (now - self._last) * 1e3
        self._last = now

    def timing(self) -> trace.Timing:
        """The stages in milliseconds; `other` is what of the total lies in no stage: this file's own work."""
        self.total_s = time.perf_counter() - self.began
        total = self.total_s * 1e3
        return trace.Timing(**self._stages, other=max(0.0, total - sum(self._stages.values())), total=total)


class StepRecord:
    """Collects a step's parts as they come, so that a failed step keeps what it had."""

    def __init__(
        self, tokens: TokenText, index: int, root_id: int, position: int, settings: Settings
    ) -> None:
        self._tokens = tokens
        self._index = index
        self._root = trace.Root(token_id=root_id, text=tokens.shown(root_id), position=position)
        self._settings = settings
        self._rows: list[list[int]] = []
        self._parts: dict[str, Any] = {}

    def chose(self, budget: int, auto: trace.AutoChoice) -> None:
        """The number that stands for the budget "auto" in this step."""
        self._settings = self._settings.model_copy(update={"budget": budget})
        self._parts["auto"] = auto

    def drafted(self, draft: Draft | None, tree: DraftTree, arrays: RetrieveArrays) -> None:
        self._parents = tree.parents.tolist()
        self._token_ids = tree.token_ids.tolist()
        self._node_rows = tree.rows.tolist()
        self._ranks = tree.ranks.tolist()
        self._depths = tree.depths.tolist()
        self._children: list[list[int]] = [[] for _ in self._parents]
        for node in range(1, len(self._parents)):
            self._children[self._parents[node]].append(node)
        if draft is not None:
            self._candidates(draft)
        self._parts["tree"] = trace.Tree(
            token_ids=self._token_ids,
            texts=[self._tokens.shown(i) for i in self._token_ids],
            parents=self._parents,
            depths=self._depths,
            ranks=self._ranks,
            row=self._node_rows,
            log_weights=tree.log_weights.tolist(),
            draft_log_probs=[
                self._log_probs[row][rank] for row, rank in zip(self._node_rows, self._ranks, strict=True)
            ],
            origin=[self._origin(row, rank) for row, rank in zip(self._node_rows, self._ranks, strict=True)],
        )
        self._parts["retrieve"] = trace.Retrieve(
            retrieve_index=arrays.retrieve_index.tolist(),
            retrieve_next_token=arrays.retrieve_next_token.tolist(),
            retrieve_next_sibling=arrays.retrieve_next_sibling.tolist(),
        )

    def _candidates(self, draft: Draft) -> None:
        """The rows used, each cut one entry after the last used; a row that was only reached keeps one."""
        count = draft.top_log_probs.shape[0]
        width = 1 if self._settings.method == "chain" else draft.top_log_probs.shape[1]
        self._log_probs = draft.top_log_probs.tolist()
        self._rows = draft.top_token_ids.tolist()
        self._child_rows = None if draft.child_rows is None else draft.child_rows.tolist()
        self._by_ngram = None if draft.by_ngram is None else draft.by_ngram.tolist()
        self._source = draft.source
        keep = [0] * count
        if count:
            keep[0] = 1
        for row, rank in zip(self._node_rows, self._ranks, strict=True):
            keep[row] = max(keep[row], rank + 2)
            child = self._child_row(row, rank)
            if child >= 0:
                keep[child] = max(keep[child], 1)
        keep = [min(entries, width) for entries in keep]
        self._parts["draft"] = trace.Draft(
            source=draft.source,
            temperature=draft.temperature,
            rows=trace.CandidateRows(
                top_log_probs=[
                    [value if math.isfinite(value) else None for value in row[:n]]
                    for row, n in zip(self._log_probs, keep, strict=True)
                ],
                top_token_ids=[row[:n] for row, n in zip(self._rows, keep, strict=True)],
                child_rows=None
                if self._child_rows is None
                else [row[:n] for row, n in zip(self._child_rows, keep, strict=True)],
                origins=None
                if self._by_ngram is None
                else [[self._origin(row, rank) for rank in range(n)] for row, n in enumerate(keep)],
            ),
        )

    def _child_row(self, row: int, rank: int) -> int:
        """The candidate row of that entry's children, -1: none."""
        if self._child_rows is not None:
            return int(self._child_rows[row][rank])
        return row + 1 if row + 1 < len(self._rows) else -1

    def _origin(self, row: int, rank: int) -> trace.Origin:
        if self._by_ngram is not None:
            return "ngram" if self._by_ngram[row][rank] else "dflash"
        assert self._source != "hybrid"
        return self._source

    def _row_of_children(self, node: int) -> int:
        if not self._rows:
            return -1
        return 0 if node == 0 else self._child_row(self._node_rows[node - 1], self._ranks[node - 1])

    def sampled(
        self,
        logits: torch.Tensor,
        verdict: TreeVerdict,
        uniform: torch.Tensor,
        final: float,
        draft: Draft | None,
        along_path: bool = False,
    ) -> None:
        """logits: a row for each node, or, along the path, for each node that was visited."""
        settings = self._settings
        visited = verdict.accept_index
        rows = [self._row_of_children(node) for node in visited]
        whole, whole_rows = (None, rows) if draft is None else draft.whole_rows(rows)
        views = observe_rows(
            logits,
            range(len(visited)) if along_path else visited,
            temperature=settings.temperature,
            top_k=settings.top_k,
            top_p=settings.top_p,
            children=[[self._token_ids[child - 1] for child in self._children[node]] for node in visited],
            draft_logits=whole,
            draft_rows=whole_rows,
            draft_temperature=1.0,
            count=SHOWN_TOKENS,
        )
        views = [replace(view, node=node) for view, node in zip(views, visited, strict=True)]
        self._parts["target"] = self._scores(views, rows)
        coins = uniform.tolist()
        self._parts["sampling"] = trace.Sampling(
            uniform_samples=coins,
            final_uniform=final,
            threshold_single=settings.threshold_single,
            threshold_acc=settings.threshold_acc,
            rule="greedy" if settings.greedy else "target_only",
        )
        self._parts["decisions"] = [
            trace.Decision(
                node=tried.node,
                prob=tried.prob,
                cumulative=tried.cumulative,
                coin=coins[self._parents[tried.node]],  # greedy walks have none; any would do
                verdict="accepted" if tried.accepted else "rejected",
            )
            for tried in verdict.decisions
        ]
        bonus = verdict.bonus_token_id
        last = self._candidate_ids(rows[-1])
        self._parts["accept"] = trace.Accept(
            accept_index=visited,
            accept_token_num=verdict.accept_token_num,
            bonus_token_id=bonus,
            bonus_text=self._tokens.shown(bonus),
            bonus_source=verdict.bonus_source,
            bonus_prob=verdict.bonus_prob,
            bonus_cumulative=verdict.bonus_cumulative,
            residual_mass=verdict.residual_mass,
            bonus_draft_rank=last.index(bonus) if bonus in last else None,
        )

    def _scores(self, views: list[RowView], rows: list[int]) -> trace.TargetScores:
        probs: list[float | None] = [None] * len(self._token_ids)
        raw_probs: list[float | None] = [None] * len(self._token_ids)
        shown = []
        for view, row in zip(views, rows, strict=True):
            for child, prob, raw in zip(
                self._children[view.node], view.child_probs, view.child_raw_probs, strict=True
            ):
                probs[child - 1], raw_probs[child - 1] = prob, raw
            draft_ids, draft_probs = self._draft_row(row)
            shown.append(
                trace.TargetRow(
                    node=view.node,
                    token_ids=view.token_ids,
                    texts=[self._tokens.shown(i) for i in view.token_ids],
                    probs=view.probs,
                    raw_probs=view.raw_probs,
                    draft_token_ids=draft_ids,
                    draft_texts=[self._tokens.shown(i) for i in draft_ids],
                    draft_probs=draft_probs,
                    entropy=view.entropy,
                    total_variation=view.total_variation,
                )
            )
        return trace.TargetScores(probs=probs, raw_probs=raw_probs, rows=shown)

    def _candidate_ids(self, row: int) -> list[int]:
        """The tokens of a candidate row, likeliest first; no entries without mass."""
        if row < 0:
            return []
        pairs = zip(self._rows[row], self._log_probs[row], strict=True)
        return [token_id for token_id, value in pairs if value > -math.inf]

    def _draft_row(self, row: int) -> tuple[list[int], list[float]]:
        """The drafter's likeliest tokens in a candidate row, with probabilities; no entries without mass."""
        shown = self._candidate_ids(row)[:SHOWN_TOKENS]
        return shown, [math.exp(self._log_probs[row][rank]) for rank in range(len(shown))]

    def finish(self, committed: list[int], texts: list[str], clock: StageClock) -> trace.Step:
        self._parts["committed"] = trace.Committed(token_ids=committed, texts=texts)
        return self._step(timing_ms=clock.timing())

    def failed(self, error: trace.StepError) -> trace.Step:
        return self._step(error=error)

    def _step(self, **last: Any) -> trace.Step:
        return trace.Step(index=self._index, root=self._root, settings=self._settings, **self._parts, **last)
