"""A server for races without a model: the tree lane replays a recorded run, the plain lane commits its tokens
one a step, the chain lane the same text up to one token that is another."""

from __future__ import annotations

from pathlib import Path

from replayed import ReplayedEngine, ReplayedServer

from ddtree import trace
from ddtree.settings import Settings

PARTS_AT = 9  # index of the token at which the chain lane's text parts
OTHER_ID, OTHER_TEXT = 7, "<b>other"
PLAIN_MS = 40.0
ROOT_ALONE = trace.Tree(
    token_ids=[],
    texts=[],
    parents=[-1],
    depths=[],
    ranks=[],
    row=[],
    log_weights=[],
    draft_log_probs=[],
    origin=[],
)


def timing(total: float) -> trace.Timing:
    return trace.Timing(
        draft=None, build=None, encode=None, verify=total, sample=None, commit=None, other=None, total=total
    )


def plain(steps: list[trace.Step]) -> list[trace.Step]:
    """One step a token: what plain decoding of the same text would have recorded, roughly."""
    out: list[trace.Step] = []
    for step in steps:
        assert step.committed and step.accept and step.target and step.sampling
        for token_id, text in zip(step.committed.token_ids, step.committed.texts, strict=True):
            accept = step.accept.model_copy(
                update={
                    "accept_index": [0],
                    "accept_token_num": 0,
                    "bonus_token_id": token_id,
                    "bonus_text": text,
                }
            )
            out.append(
                step.model_copy(
                    update={
                        "draft": None,
                        "tree": ROOT_ALONE,
                        "retrieve": trace.Retrieve(
                            retrieve_index=[0], retrieve_next_token=[-1], retrieve_next_sibling=[-1]
                        ),
                        "target": trace.TargetScores(probs=[], raw_probs=[], rows=step.target.rows[:1]),
                        "sampling": step.sampling.model_copy(update={"uniform_samples": [0.5]}),
                        "decisions": [],
                        "accept": accept,
                        "committed": trace.Committed(token_ids=[token_id], texts=[text]),
                        "timing_ms": timing(PLAIN_MS),
                    }
                )
            )
    return out


def parted(steps: list[trace.Step]) -> list[trace.Step]:
    """The same steps with another token number PARTS_AT."""
    out, seen = [], 0
    for step in steps:
        assert step.committed is not None
        ids, texts = list(step.committed.token_ids), list(step.committed.texts)
        if seen <= PARTS_AT < seen + len(ids):
            ids[PARTS_AT - seen], texts[PARTS_AT - seen] = OTHER_ID, OTHER_TEXT
        seen += len(ids)
        committed = trace.Committed(token_ids=ids, texts=texts)
        out.append(step.model_copy(update={"committed": committed}))
    return out


class RacingEngine(ReplayedEngine):
    def __init__(self, recorded: Path, seconds: float) -> None:
        super().__init__(recorded, 0, seconds)
        whole = [step for step in self.recorded.steps if step.committed is not None]
        self.by_method = {"ddtree": whole, "chain": parted(whole), "autoregressive": plain(whole)}

    def plays(self, settings: Settings) -> tuple[list[trace.Step], int]:
        steps = self.by_method[settings.method]
        return steps, len(steps)


class RacingServer(ReplayedServer):
    """`ReplayedServer` with a `RacingEngine`."""

    def __init__(self, recorded: Path, data: Path, seconds: float = 0.005) -> None:
        super().__init__(recorded, data, 0, seconds, engine=RacingEngine(recorded, seconds))
