"""The one exception of this package."""


class ForeignError(ValueError):
    """What was given cannot be read; the message is one sentence with the remedy."""
