"""Training a DFlash drafter for a target on text of the target's own making: `ddtree train`.

The stages, each of which can be stopped and resumed: synthesise (texts), features (the target's tapped hidden
states of them), train, evaluate (acceptance on held-out texts), export (a checkpoint that `--draft-model`
takes).
"""
