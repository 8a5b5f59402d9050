"""A bench's folder: its plan, and one JSON line for each run as it happens. The same plan goes on where it
stopped; another one is refused.

    plan.json       what is measured, with what, on what
    records.jsonl   a Record a line; of two with the same key the later one counts
    results.json, report.html   what the records come to (`results`, `report`)
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, ValidationError

from app.errors import shown
from ddtree.statistics import Statistics
from ddtree.trace import Engine

Key = tuple[str, str, float, int]


class PlannedPrompt(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str
    category: str
    text: str
    tokens: int
    cut: bool


class Plan(BaseModel):
    """Everything that the records of one folder have in common."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    lanes: list[str]
    temperatures: list[float]
    repeats: int
    new_tokens: int
    prompt_limit: int
    acceptance_only: bool
    seed: int
    model: str
    drafters: list[str]
    machine: str
    engine: Engine
    prompts: list[PlannedPrompt]

    @property
    def rounds(self) -> list[tuple[int, int]]:
        """(repeat, index of the prompt) in the order in which they are run."""
        return [(repeat, index) for repeat in range(self.repeats) for index in range(len(self.prompts))]


class Record(BaseModel):
    """One run: a prompt in a lane at a temperature. Times are null where none were asked for."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    prompt: str
    lane: str
    temperature: float
    repeat: int
    seed: int
    wall_s: float | None  # the whole run, prefill included
    step_s: float | None  # inside steps; null for a baseline, which does not tell
    finish: str
    lossy: bool = False
    error: str | None = None
    statistics: Statistics

    @property
    def key(self) -> Key:
        return self.prompt, self.lane, self.temperature, self.repeat


class StoreError(ValueError):
    """The folder cannot be used for this bench; one sentence."""


class Store:
    """`Store.open(folder, plan)`; `records` are those that are there, `add` appends one."""

    def __init__(self, folder: Path, plan: Plan, records: dict[Key, Record]) -> None:
        self.folder = folder
        self.plan = plan
        self.records = records
        self._file = (folder / "records.jsonl").open("a", encoding="utf-8")

    @classmethod
    def open(cls, folder: Path, plan: Plan) -> Self:
        """Begins or goes on. Raises StoreError when the folder holds another bench or broken records."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
            plan_file = folder / "plan.json"
            if plan_file.is_file():
                _check_same(folder, plan_file.read_text(encoding="utf-8"), plan)
            else:
                plan_file.write_text(plan.model_dump_json(indent=1), encoding="utf-8")
            return cls(folder, plan, _read_records(folder / "records.jsonl"))
        except OSError as error:
            raise StoreError(f"--out {folder}: {error.strerror}") from None

    def add(self, records: list[Record]) -> None:
        """Appends, on disk when it returns."""
        self._file.writelines(record.model_dump_json() + "\n" for record in records)
        self._file.flush()
        os.fsync(self._file.fileno())
        self.records |= {record.key: record for record in records}

    def close(self) -> None:
        self._file.close()


def _check_same(folder: Path, text: str, plan: Plan) -> None:
    try:
        kept = Plan.model_validate_json(text)
    except ValidationError:
        raise StoreError(f"--out {folder}: its plan.json is not a bench's; name another folder") from None
    for name in Plan.model_fields:
        there, here = getattr(kept, name), getattr(plan, name)
        if there != here:
            if name == "prompts":
                difference = f"other prompts ({len(there)}, here {len(here)})"
            else:
                difference = f"{name} {shown(there)}, here it is {shown(here)}"
            raise StoreError(
                f"--out {folder} holds a bench with {difference}: name another folder, or the same settings"
            )


def _read_records(file: Path) -> dict[Key, Record]:
    """The records of a file; a last line that was not written to its end is cut off."""
    if not file.is_file():
        return {}
    data = file.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]
    if len(whole) < len(data):
        file.write_bytes(whole)
    records: dict[Key, Record] = {}
    for number, line in enumerate(whole.splitlines(), 1):
        try:
            record = Record.model_validate_json(line)
        except (ValidationError, json.JSONDecodeError):
            raise StoreError(f"{file}, line {number}: not a bench's record; delete the line") from None
        records[record.key] = record
    return records
