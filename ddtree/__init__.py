"""Tree speculative decoding: draft trees, their encoding, the tree sampler, and the loop around them.

The names below can be imported from here. The import itself is light: torch is loaded when one is first used.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

_HOME = {
    "DraftTree": "tree",
    "build_ddtree_tree": "tree",
    "build_ddtree_tree_from_topk": "tree",
    "RetrieveArrays": "retrieve",
    "RetrieveFault": "retrieve",
    "check_retrieve": "retrieve",
    "compile_ddtree_retrieve": "retrieve",
    "topk_log_softmax": "topk",
    "TreeVerdict": "sampling",
    "coins": "sampling",
    "tree_speculative_sampling_target_only": "sampling",
    "verify_tree": "sampling",
    "verify_tree_greedy": "sampling",
    "Target": "target",
    "load_drafter": "models",
    "load_engine": "engine",
    "load_target": "models",
    "HybridDrafter": "drafters.hybrid",
    "NgramDrafter": "drafters.ngram",
    "TreeDecoder": "decoder",
    "SettingsError": "decoder",
    "Settings": "settings",
    "Step": "trace",
    "Trace": "trace",
    "TraceError": "trace_file",
    "load_trace": "trace_file",
    "check_trace": "replay",
}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'ddtree' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"ddtree.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*globals(), *__all__]
