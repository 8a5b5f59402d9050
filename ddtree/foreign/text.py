"""Text as values: JSON, JSON lines, Python literals, and what torch and NumPy print.

Nothing is evaluated. One small reader takes literals and printouts alike: lists whose entries are parted by
commas or, as NumPy prints them, by spaces; `tensor(...)` and `array(...)` with their keywords; whole objects
as `Name(field=value, ...)`; and `name = value` lines. Its time is linear in the text and its depth bounded.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from ddtree.foreign.errors import ForeignError

MAX_JSON_CHARS = 8 * 2**20
MAX_LITERAL_CHARS = 2 * 2**20
MAX_DEPTH = 32
"""Brackets within brackets."""

_TOKEN = re.compile(
    r"""(?P<space>\s+|\#[^\n]*)
    |(?P<number>[+-]?(?:(?:inf|nan|Infinity|NaN)\b|(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?))
    |(?P<dots>\.\.\.|…)
    |(?P<name>[A-Za-z_][\w.]*)
    |(?P<string>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
    |(?P<angle><[^<>\n]*>)
    |(?P<mark>[\[\](){},:=;])""",
    re.VERBOSE,
)
_CONSTANTS = {"None": None, "null": None, "True": True, "true": True, "False": False, "false": False}
_CLOSES = {"[": "]", "(": ")", "{": "}"}
_LONGEST_NUMBER = 40  # characters: Python's int() of a long text takes quadratic time
_SUMMARISED = (
    "the printout is summarised ('...'): print all of it, after torch.set_printoptions(threshold=10**9) or "
    "numpy.set_printoptions(threshold=10**9)"
)


def read_text(text: str) -> tuple[Any, str]:
    """(the value, what it was written as). Raises ForeignError."""
    if not text.strip():
        raise ForeignError("nothing was given: paste a tree, or drop a file with one")
    if len(text) > MAX_JSON_CHARS:
        raise ForeignError(
            f"the text has {len(text)} characters, the limit is {MAX_JSON_CHARS}: save arrays as .npz or "
            ".safetensors and drop the file"
        )
    try:
        return json.loads(text), "JSON"
    except RecursionError:
        raise ForeignError(
            f"the JSON has more than {MAX_DEPTH} brackets within brackets: give plain arrays"
        ) from None
    except ValueError as error:
        reason = str(error)
    if (lines := _json_lines(text)) is not None:
        return lines, "JSON lines"
    if len(text) > MAX_LITERAL_CHARS:
        raise ForeignError(
            f"this is not JSON ({reason}), and {len(text)} characters are too many for a literal or a "
            f"printout (the limit is {MAX_LITERAL_CHARS}): save the arrays as .npz or .safetensors"
        )
    try:
        return _Reader(text).document(), "literal or printout"
    except ForeignError as error:
        if str(error) == _SUMMARISED:
            raise
        raise ForeignError(
            f"this is not JSON ({reason}), and no Python literal or printout either: {error}"
        ) from None


def _json_lines(text: str) -> list[Any] | None:
    """Several JSON objects, one a line; None where it is something else."""
    lines = [line for line in text.splitlines() if line.strip()]
    if len(lines) < 2 or not all(line.lstrip().startswith("{") for line in lines):
        return None
    try:
        return [json.loads(line) for line in lines]
    except (ValueError, RecursionError):
        return None


class _Token(NamedTuple):
    kind: str
    text: str
    at: int


class _Reader:
    """Recursive descent over the tokens of one text."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = self._scan()
        self._next = next(self._tokens)
        self._depth = 0

    def _scan(self) -> Iterator[_Token]:
        at = 0
        while at < len(self._text):
            found = _TOKEN.match(self._text, at)
            if found is None:
                raise self._fault(at, f"{self._text[at]!r} is not expected")
            kind = found.lastgroup or ""
            if kind == "dots":
                raise ForeignError(_SUMMARISED)
            if kind != "space":
                yield _Token(kind, found.group(), at)
            at = found.end()
        yield _Token("end", "the end", at)

    def _fault(self, at: int, what: str) -> ForeignError:
        line = self._text.count("\n", 0, at) + 1
        column = at - (self._text.rfind("\n", 0, at) + 1) + 1
        return ForeignError(f"line {line}, column {column}: {what}")

    def _take(self) -> _Token:
        taken = self._next
        if taken.kind != "end":
            self._next = next(self._tokens)
        return taken

    def _skip(self, *marks: str) -> bool:
        """Take one of these marks if it stands here."""
        if self._next.kind == "mark" and self._next.text in marks:
            self._take()
            return True
        return False

    def document(self) -> Any:
        """One value, or several named ones as a dict."""
        named: dict[str, Any] = {}
        while True:
            first = self._next
            value = self._value(named_ones=True)
            if isinstance(value, _Name):
                if not self._skip("=", ":"):
                    raise self._fault(first.at, f"{value.text!r} is no value: write name = value")
                named[value.text] = self._value()
                self._skip(",", ";")
            elif not named and self._next.kind == "end":
                return value
            else:
                raise self._fault(first.at, "a second value without a name: write name = value, line by line")
            if self._next.kind == "end":
                return named

    def _value(self, named_ones: bool = False) -> Any:
        token = self._take()
        if token.kind == "number":
            return self._number(token)
        if token.kind == "string":
            text = token.text[1:-1]
            return _Name(text) if named_ones and self._at("=", ":") else text
        if token.kind == "name":
            if token.text in _CONSTANTS:
                return _CONSTANTS[token.text]
            if self._at("("):
                return self._call()
            return _Name(token.text) if named_ones else token.text
        if token.kind == "angle":
            return token.text
        if token.kind == "mark" and token.text in _CLOSES:
            self._depth += 1
            if self._depth > MAX_DEPTH:
                raise self._fault(token.at, f"more than {MAX_DEPTH} brackets within brackets")
            value = self._dict() if token.text == "{" else self._items(_CLOSES[token.text])
            self._depth -= 1
            return value
        raise self._fault(token.at, f"{token.text!r} is not expected")

    def _at(self, *marks: str) -> bool:
        return self._next.kind == "mark" and self._next.text in marks

    def _number(self, token: _Token) -> int | float:
        text = token.text.replace("_", "")
        if len(text) > _LONGEST_NUMBER:
            raise self._fault(token.at, f"a number of {len(text)} characters is too long")
        return int(text) if text.lstrip("+-").isdigit() else float(text)

    def _items(self, close: str) -> list[Any]:
        """Entries parted by commas or by nothing but space."""
        items: list[Any] = []
        while not self._skip(close):
            if self._next.kind == "end":
                raise self._fault(self._next.at, f"{close!r} is missing")
            items.append(self._value())
            self._skip(",")
        return items

    def _dict(self) -> dict[str, Any]:
        entries: dict[str, Any] = {}
        while not self._skip("}"):
            key = self._value()
            if not self._skip(":"):
                raise self._fault(self._next.at, "':' is missing after a key")
            entries[str(key)] = self._value()
            self._skip(",")
        return entries

    def _call(self) -> Any:
        """`tensor([...], dtype=...)` is its first argument, `Record(a=1, b=2)` a dict of its keywords."""
        opened = self._take()
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self._fault(opened.at, f"more than {MAX_DEPTH} brackets within brackets")
        positional, keywords = [], {}
        while not self._skip(")"):
            if self._next.kind == "end":
                raise self._fault(self._next.at, "')' is missing")
            value = self._value(named_ones=True)
            if isinstance(value, _Name) and self._skip("="):
                keywords[value.text] = self._value()
            else:
                positional.append(value.text if isinstance(value, _Name) else value)
            self._skip(",")
        self._depth -= 1
        return positional[0] if positional else keywords


class _Name(NamedTuple):
    """A bare word where a name may stand."""

    text: str
