"""Tokens as text: one token shown by itself, and a sequence of tokens as running text.

A token is a string of bytes, not of characters: byte-level vocabularies split a character over tokens. By
itself such a token shows its bytes, <F0><9F>; in running text the character appears once, whole, with the
token that completes it.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterable
from typing import Any


def _byte_level_alphabet() -> dict[str, int]:
    """The byte each character of a byte-level vocabulary stands for: printable Latin-1 stands for itself, the
    68 other bytes follow from U+0100 on in their order (GPT-2's vocabulary format)."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(others)}


_ALPHABET = _byte_level_alphabet()


def _decoder_kinds(tokenizer: Any) -> set[str]:
    """Names of the decoding steps of a `tokenizers` tokenizer: ByteLevel, ByteFallback, Replace, ..."""
    decoder = getattr(getattr(tokenizer, "backend_tokenizer", None), "decoder", None)
    if decoder is None:
        return set()
    state = json.loads(decoder.__getstate__())
    return {part["type"] for part in state.get("decoders", [state])}


def show_bytes(data: bytes) -> str:
    """`data` as UTF-8, every byte that is not part of a whole character as <XX>."""
    text = data.decode("utf-8", "surrogateescape")
    return "".join(f"<{ord(c) - 0xDC00:02X}>" if 0xDC80 <= ord(c) <= 0xDCFF else c for c in text)


class TokenText:
    """Bytes and display text of a tokenizer's tokens, each computed once."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        kinds = _decoder_kinds(tokenizer)
        self._byte_level = "ByteLevel" in kinds
        self._byte_fallback = "ByteFallback" in kinds
        self._added = {int(i): str(token) for i, token in tokenizer.added_tokens_decoder.items()}
        self._shown: dict[int, str] = {}

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes of one token; an id without a token (a padded vocabulary) gives b"<id>"."""
        if token_id in self._added:
            return self._added[token_id].encode()
        token = self._tokenizer.convert_ids_to_tokens(token_id)
        if token is None:
            return f"<{token_id}>".encode()
        if self._byte_level and all(char in _ALPHABET for char in token):
            return bytes(_ALPHABET[char] for char in token)
        if self._byte_fallback:
            if len(token) == 6 and token.startswith("<0x"):
                return bytes([int(token[3:5], 16)])
            return str(token).replace("\u2581", " ").encode()
        return str(self._tokenizer.decode([token_id])).encode()

    def shown(self, token_id: int) -> str:
        """One token by itself."""
        text = self._shown.get(token_id)
        if text is None:
            text = self._shown[token_id] = show_bytes(self.token_bytes(token_id))
        return text


class RunningText:
    """Text of a growing sequence: each pushed token gives the characters that it completes."""

    def __init__(self, tokens: TokenText) -> None:
        self._tokens = tokens
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_ids: Iterable[int]) -> list[str]:
        """One string a token; joined they are the text. Bytes that are no character become U+FFFD."""
        return [self._decoder.decode(self._tokens.token_bytes(i)) for i in token_ids]

    def finish(self) -> str:
        """What an unfinished character at the very end leaves: U+FFFD or nothing."""
        return self._decoder.decode(b"", True)
