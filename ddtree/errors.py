"""Why a model cannot be used; the messages are whole sentences for the person who named it."""

from __future__ import annotations


class UnsupportedModel(ValueError):
    """The model cannot be tree-verified, or its file not be read."""


class ModelUnavailable(ValueError):
    """The model was not found or could not be fetched; the message says what to do."""
