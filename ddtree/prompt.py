"""From what a person typed to the prompt's token ids, with the limits checked."""

from __future__ import annotations

from collections.abc import Sequence

from ddtree.settings import Settings
from ddtree.target import Target


class SettingsError(ValueError):
    """A prompt or setting that cannot be honoured. `code`: bad_value, not_live or prompt_too_long; `field` is
    the setting's name, or "prompt"."""

    def __init__(self, code: str, message: str, field: str) -> None:
        super().__init__(message)
        self.code = code
        self.field = field


def prompt_token_ids(target: Target, prompt: str, settings: Settings) -> list[int]:
    """Token ids of `prompt`, through the chat template where `settings.chat` is on; no limit is checked."""
    if settings.chat:
        messages = [{"role": "user", "content": prompt}]
        if settings.system is not None:
            messages.insert(0, {"role": "system", "content": settings.system})
        text = target.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        token_ids = target.tokenizer(text, add_special_tokens=False).input_ids
    else:
        token_ids = target.tokenizer(prompt).input_ids
    return [int(i) for i in token_ids]


def encode_prompt(target: Target, prompt: str, settings: Settings) -> list[int]:
    """The prompt's token ids, checked.

    Raises SettingsError when there is nothing to decode from, or when prompt and max_new_tokens together do
    not fit the target's context.
    """
    token_ids = prompt_token_ids(target, prompt, settings)
    check_prompt(target, token_ids, settings)
    return token_ids


def check_prompt(target: Target, token_ids: Sequence[int], settings: Settings) -> None:
    """Raises SettingsError as `encode_prompt` does."""
    if not token_ids:
        raise SettingsError("bad_value", "the prompt is empty; type at least one character", "prompt")
    most = target.max_context
    if len(token_ids) >= most:
        message = (
            f"the prompt has {len(token_ids)} tokens; {target.name} takes {most - 1} at most: shorten it"
        )
        raise SettingsError("prompt_too_long", message, "prompt")
    room = most - len(token_ids)
    if settings.max_new_tokens > room:
        message = (
            f"max_new_tokens {settings.max_new_tokens} does not fit after a prompt of {len(token_ids)} "
            f"tokens in {target.name}'s context of {most}; use {room} at most"
        )
        raise SettingsError("bad_value", message, "max_new_tokens")
