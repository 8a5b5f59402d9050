"""Targets larger than one device: layers on several (accelerate's device map), or each layer cut over several
processes (transformers' tensor parallel plan, started by torchrun).

With several processes rank 0 decodes and drafts as if it were alone. Before each pass of the target it tells
the others what the pass reads, and they run it on their parts of the weights and caches at the same time.
"""

from __future__ import annotations

import atexit
import contextlib
import datetime
import itertools
import weakref
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from ddtree.errors import UnsupportedModel
from ddtree.kvcache import TargetCache
from ddtree.ranks import Placement, Ranks
from ddtree.target import Target

_PATIENCE = datetime.timedelta(days=365)
"""How long a process waits for rank 0: a page may be idle for long."""


# ---- loading ----


def loading_options(name: str, config: Any, placement: Placement) -> dict[str, Any]:
    """What `from_pretrained` is told of a placement. Raises UnsupportedModel or ValueError, one sentence."""
    if placement.device_map is not None:
        return {"device_map": placement.device_map}
    if placement.ranks is None:
        return {}
    _check_ranks(name, config.get_text_config(), placement.device, placement.ranks)
    from transformers.distributed.configuration_utils import DistributedConfig

    return {"distributed_config": DistributedConfig(tp_size=placement.ranks.size)}


def _check_ranks(name: str, config: Any, device: str, ranks: Ranks) -> None:
    has_cuda = torch.cuda.is_available()
    if device != "auto" and (device == "cuda") != has_cuda:
        here = "CUDA" if has_cuda else "the CPU"
        raise ValueError(f"device {device!r} was asked for, but torchrun's processes run on {here} here")
    if has_cuda and ranks.local_size > torch.cuda.device_count():
        raise ValueError(
            f"torchrun has started {ranks.local_size} processes here, but torch sees "
            f"{torch.cuda.device_count()} CUDA devices: start as many"
        )
    if not getattr(config, "base_model_tp_plan", None):
        raise UnsupportedModel(
            f"transformers has no tensor parallel plan for {name} ({config.model_type}): start one process, "
            "with --device-map auto where it needs several devices"
        )
    for key in ("num_attention_heads", "num_key_value_heads"):
        heads = getattr(config, key, None)
        if heads is not None and heads % ranks.size:
            raise UnsupportedModel(
                f"{name} has {key} {heads}, which {ranks.size} processes cannot share evenly: start a number "
                "that divides it"
            )


def spread_of(name: str, model: Any, placement: Placement) -> str | None:
    """How a loaded model is spread, in words, or None: it is whole, on one device. Raises UnsupportedModel
    where a part of it has no memory."""
    if placement.ranks is not None:
        return f"each layer is cut over {placement.ranks.size} processes"
    places = [str(place) for place in (getattr(model, "hf_device_map", None) or {}).values()]
    if "disk" in places:
        raise UnsupportedModel(
            f"{name} does not fit into the memory here: {places.count('disk')} of its {len(places)} parts "
            "would stay on disk; take a smaller model or dtype"
        )
    devices = sorted(set(places))
    return f"its layers lie on {len(devices)} devices: {', '.join(devices)}" if len(devices) > 1 else None


# ---- one decodes, the others follow ----


def _control_group() -> dist.ProcessGroup:
    """For what is said; what is computed goes through the device's own group. All ranks make it together."""
    return dist.new_group(backend="gloo", timeout=_PATIENCE)  # type: ignore[no-any-return]


class Leader:
    """Rank 0's voice: says each thing that the target's parts must do together, before it is done."""

    def __init__(self) -> None:
        self._group = _control_group()
        self._numbers: weakref.WeakKeyDictionary[TargetCache, int] = weakref.WeakKeyDictionary()
        self._next = itertools.count()
        self._gone: list[int] = []  # caches that nobody holds any more
        atexit.register(self.dismiss)

    def opened(self, cache: TargetCache) -> None:
        number = next(self._next)
        self._numbers[cache] = number
        # Told with the next thing that is said: this may run in the middle of another.
        weakref.finalize(cache, self._gone.append, number)
        self._say("open", number, cache.capacity, cache.taps)

    def passes(self, cache: TargetCache, *rows: torch.Tensor, last_logits_only: bool) -> None:
        """rows: token ids, positions, visibility, as `Target.verify` takes them."""
        there = [part.cpu() for part in rows]
        self._say("pass", self._numbers[cache], cache.length, there, last_logits_only)

    def keeps(self, cache: TargetCache, rows: Sequence[int]) -> None:
        self._say("keep", self._numbers[cache], list(rows))

    def embeds(self, token_ids: torch.Tensor) -> None:
        self._say("embed", token_ids.cpu())

    def scores(self, states: torch.Tensor) -> None:
        self._say("head", states.cpu())

    def dismiss(self) -> None:
        """The others may end."""
        if dist.is_initialized():
            with contextlib.suppress(RuntimeError):  # they are gone already
                self._say("stop")
            dist.destroy_process_group()

    def _say(self, command: str, *arguments: Any) -> None:
        gone, self._gone[:] = list(self._gone), []
        dist.broadcast_object_list([(gone, command, arguments)], src=0, group=self._group)


@torch.inference_mode()
def follow(target: Target) -> None:
    """What every other rank does once its part of the target is loaded, until rank 0 ends. Raises
    RuntimeError when rank 0 is gone without a word."""
    group = _control_group()
    caches: dict[int, TargetCache] = {}
    while True:
        heard: list[Any] = [None]
        dist.broadcast_object_list(heard, src=0, group=group)
        gone, command, arguments = heard[0]
        for number in gone:
            caches.pop(number, None)
        if command == "stop":
            dist.destroy_process_group()
            return
        if command == "open":
            number, capacity, taps = arguments
            caches[number] = target.new_cache(capacity, taps)
        elif command == "pass":
            number, length, (token_ids, positions, visibility), last_logits_only = arguments
            caches[number].length = length
            target.run_pass(caches[number], token_ids, positions, visibility, last_logits_only)
        elif command == "keep":
            number, rows = arguments
            target.commit(caches[number], rows)
        elif command == "embed":
            target.embed(arguments[0].to(target.device))
        else:
            target.head(arguments[0].to(target.device))
