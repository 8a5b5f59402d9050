"""What a run is at between two steps: the committed tokens, the target's cache, each drafter's state, the
counters; and where what a step has accepted is cut."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ddtree.autobudget import AutoBudget
from ddtree.kvcache import TargetCache
from ddtree.sampling import TreeVerdict
from ddtree.settings import Settings
from ddtree.static_pipeline import Pipeline
from ddtree.text import RunningText
from ddtree.trace import FinishReason, ForkedFrom, Prompt
from ddtree.tree import DraftTree


@dataclass
class Run:
    """One run's state between two steps."""

    created_at: str
    prompt: Prompt
    settings: Settings  # those of the start, resolved
    token_ids: list[int]  # prompt and committed tokens; the last one is the next step's root
    cache: TargetCache
    text: RunningText
    auto: AutoBudget
    drafter_states: dict[str, Any] = field(default_factory=dict)
    finish_reason: FinishReason | None = None
    steps: int = 0  # failed steps are not counted
    accepted_drafts: int = 0
    step_s: float = 0.0
    prefill_s: float = 0.0
    lossy: bool = False
    pipeline: Pipeline | None = None  # where steps are static ones
    forked_from: ForkedFrom | None = None

    @property
    def committed(self) -> int:
        return len(self.token_ids) - len(self.prompt.token_ids)

    @property
    def root_position(self) -> int:
        return len(self.token_ids) - 1

    def accept(self, tree: DraftTree, verdict: TreeVerdict, stop_token_ids: Sequence[int]) -> list[int]:
        """Take over the accepted path and the bonus, cut after the first stop token and at max_new_tokens.

        Tokens, counters and the cache are cut at the same place: of k committed tokens the last is the next
        root, and the first k rows of the path (root first) are those before it.
        """
        path = [int(tree.token_ids[node - 1]) for node in verdict.accept_index[1:]] + [verdict.bonus_token_id]
        committed, self.finish_reason = cut_committed(
            path, stop_token_ids, self.settings.max_new_tokens - self.committed
        )
        self.token_ids += committed
        self.accepted_drafts += min(verdict.accept_token_num, len(committed))
        return committed

    def texts(self, committed: list[int]) -> list[str]:
        """The text that each of the tokens adds; what is left of a character goes to the run's last one."""
        texts = self.text.push(committed)
        if self.finish_reason is not None:
            texts[-1] += self.text.finish()
        return texts

    def cancel(self) -> None:
        """End the run between two steps."""
        self.finish_reason = self.finish_reason or "cancelled"
        self.release()

    def release(self) -> None:
        """What the run holds of a device that another run can use is given back."""
        if self.pipeline is not None:
            self.pipeline.release()
            self.pipeline = None


def cut_committed(
    path: Sequence[int], stop_token_ids: Sequence[int], room: int
) -> tuple[list[int], FinishReason | None]:
    """(what of `path` is committed, why the run ends or None): cut after the first stop token, else at `room`
    tokens. A stop token inside the room beats the limit."""
    for i, token_id in enumerate(path[:room]):
        if token_id in stop_token_ids:
            return list(path[: i + 1]), "stop"
    return list(path[:room]), "length" if len(path) >= room else None
