"""The wire of /ws/decode: JSON text frames {type, ...}. The browser meets the server only here.

A client message that is no JSON, has an unknown type or a bad value is answered with an `error` frame
(code, message, field) and the connection lives on. Commands mean the run that the connection started or
watched last. `seq` numbers a run's frames as they happened, `started` being 0: a viewer that comes later is
sent the steps it lacks with the numbers they had, so what it sees rises but need not be without gaps.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from ddtree.settings import Settings
from ddtree.trace import DrafterInfo, Engine, FinishReason, ForkedFrom, Prompt, Step, Summary, TargetInfo


class Frame(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


# ---- client to server ----


class ForkPoint(Frame):
    """A step of a stored run, finished or not: the new run's prompt is that run's prompt and what its steps
    before this one committed."""

    run_id: str = Field(max_length=200)
    step: int = Field(ge=0, lt=2**31)


class Start(Frame):
    """Start a run and watch it. The run being watched before goes on. With `fork` it goes on from a step of
    another run: that run's prompt is taken, whatever stands in `prompt`."""

    type: Literal["start"]
    prompt: str
    fork: ForkPoint | None = None
    settings: dict[str, Any] = {}
    pace: float | None = Field(None, gt=0, le=1000, description="steps a second at most; null: full speed")
    paused: bool = Field(False, description="start paused, before step 0")


class Update(Frame):
    """Change settings from the next step on, and the pace."""

    type: Literal["update"]
    settings: dict[str, Any] = {}
    pace: float | None = Field(None, gt=0, le=1000, description="null: full speed; left out: unchanged")


class Pause(Frame):
    type: Literal["pause"]


class Resume(Frame):
    type: Literal["resume"]


class StepOnce(Frame):
    """One step, then paused."""

    type: Literal["step"]


class Stop(Frame):
    type: Literal["stop"]


class Watch(Frame):
    """Watch a run from the step after `after` (-1: from the start); live or finished."""

    type: Literal["watch"]
    run_id: str
    after: int = Field(-1, ge=-1)


ClientMessage = Annotated[
    Start | Update | Pause | Resume | StepOnce | Stop | Watch, Field(discriminator="type")
]
client_message: TypeAdapter[ClientMessage] = TypeAdapter(ClientMessage)

# ---- server to client ----

RunState = Literal["waiting", "prefill", "running", "paused", "finished", "interrupted"]


class Hello(Frame):
    """First frame of every connection, and again as loading goes on, when the model has become ready, and
    when it failed to load."""

    type: Literal["hello"] = "hello"
    version: str
    model: Literal["loading", "ready", "failed"]
    message: str = Field("", description="what loading is at, or why it failed")
    progress: float | None = Field(None, description="0..1 where it is known")
    engine: Engine | None = None
    target: TargetInfo | None = None
    drafters: list[DrafterInfo] = []
    default_drafter: str | None = None
    has_chat_template: bool | None = None


class Started(Frame):
    """A run that this connection now watches: the head of its trace."""

    type: Literal["started"] = "started"
    seq: int
    run_id: str
    state: RunState
    created_at: str
    prompt: Prompt
    settings: Settings
    drafter: DrafterInfo
    target: TargetInfo
    engine: Engine
    stop_token_ids: list[int]
    forked_from: ForkedFrom | None = Field(
        None, description="the step of another run that this one goes on from"
    )
    steps: int = Field(description="steps that exist already; those after `after` follow")


class StepFrame(Frame):
    type: Literal["step"] = "step"
    seq: int
    run_id: str
    step: Step


class SettingsFrame(Frame):
    """Settings in force from step `from_step` on."""

    type: Literal["settings"] = "settings"
    seq: int
    run_id: str
    settings: Settings
    pace: float | None
    from_step: int


class StateFrame(Frame):
    type: Literal["state"] = "state"
    seq: int
    run_id: str
    state: RunState
    place: int | None = Field(None, description="place in the queue while waiting, from 1")
    progress: float | None = Field(None, description="0..1 of the prompt while in prefill")


class Finished(Frame):
    type: Literal["finished"] = "finished"
    seq: int
    run_id: str
    summary: Summary


class Lagging(Frame):
    """Steps `from`..`to` were not sent to this viewer; they are at /api/runs/{run_id}/steps?from=."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    type: Literal["lagging"] = "lagging"
    run_id: str
    from_: int = Field(alias="from", serialization_alias="from")
    to: int


class ErrorFrame(Frame):
    """`field` names the setting or key; codes: bad_message, unknown_type, bad_value, not_live, no_run,
    not_found, not_ready, prompt_too_long, queue_full, internal."""

    type: Literal["error"] = "error"
    code: str
    message: str
    field: str | None = None


__all__ = ["FinishReason", "client_message"]
