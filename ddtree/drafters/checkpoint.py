"""A DFlash checkpoint's files: config.json, safetensors, perhaps a tokenizer and a vocabulary of its own,
read and checked against the target before anything runs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ddtree.drafters.dflash import DFlashDrafter, DFlashModel
from ddtree.drafters.dflash_config import DFlashConfig, check_target, read_config


def load_dflash(folder: Path, target: Any, name: str) -> DFlashDrafter:
    """Raises ValueError when the files do not fit each other or the target; the message names what."""
    config = read_config(folder)
    tensors = read_tensors(folder)
    offsets, head_weight = tensors.pop("d2t", None), tensors.pop("lm_head.weight", None)
    for unused in ("t2d", "embed_tokens.weight"):  # the reverse table; a copy of the target's embedding
        tensors.pop(unused, None)
    own_vocabulary = offsets is not None
    check_target(
        config,
        num_layers=target.num_layers,
        hidden_size=target.hidden_size,
        vocab_size=target.vocab_size,
        own_vocabulary=own_vocabulary,
    )
    check_tokenizer(folder, target.tokenizer)
    check_fingerprint(config, target)
    gate = tensors.get("layers.0.mlp.gate_proj.weight")
    if gate is None:
        raise ValueError("its safetensors hold no layers.0.mlp.gate_proj.weight")
    model = DFlashModel(config, gate.shape[0])
    try:
        model.load_state_dict(tensors)
    except RuntimeError as error:
        raise ValueError("its tensors do not fit config.json: " + " ".join(str(error).split())) from error
    if not own_vocabulary:
        return DFlashDrafter(name, config, model, target)
    assert offsets is not None
    target_ids = target_token_ids(offsets, target.vocab_size)
    if head_weight is None:  # the target's own head, for these tokens alone
        head_weight = target.model.get_output_embeddings().weight.detach()[target_ids]
    if head_weight.shape != (len(target_ids), config.hidden_size):
        expected = (len(target_ids), config.hidden_size)
        raise ValueError(
            f"lm_head.weight has shape {tuple(head_weight.shape)}; d2t and hidden_size say {expected}"
        )
    head = nn.Linear(config.hidden_size, len(target_ids), bias=False)
    head.load_state_dict({"weight": head_weight})
    return DFlashDrafter(name, config, model, target, head, target_ids)


def target_token_ids(offsets: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """The draft-to-target table stores offsets: the target's id of draft token i is i + d2t[i]. int64 [Vd].
    Raises ValueError naming a token that has no place in the target, or two that share one."""
    ids = torch.arange(len(offsets)) + offsets.to(torch.int64)
    outside = ((ids < 0) | (ids >= vocab_size)).nonzero().flatten()
    if len(outside):
        first = int(outside[0])
        raise ValueError(f"d2t sends token {first} to {int(ids[first])}; the target has {vocab_size} tokens")
    unique, counts = torch.unique(ids, return_counts=True)
    if len(unique) < len(ids):
        raise ValueError(f"d2t sends several tokens to {int(unique[counts > 1][0])}")
    return ids


def fingerprint(num_layers: int, hidden_size: int, vocab_size: int, vocabulary: Mapping[str, int]) -> str:
    """Of a target's shape and vocabulary (token -> id): 16 hexadecimal digits that say whether a drafter was
    trained for it."""
    digest = hashlib.sha256(json.dumps([num_layers, hidden_size, vocab_size]).encode())
    for token, token_id in sorted(vocabulary.items(), key=lambda item: item[1]):
        digest.update(f"{token_id}:{token}\n".encode())
    return digest.hexdigest()[:16]


def check_fingerprint(config: DFlashConfig, target: Any) -> None:
    """Raises ValueError when the checkpoint records another target than this one."""
    if config.target_fingerprint is None:
        return
    found = fingerprint(
        target.num_layers, target.hidden_size, target.vocab_size, target.tokenizer.get_vocab()
    )
    if found != config.target_fingerprint:
        raise ValueError(
            f"it was trained for a target of fingerprint {config.target_fingerprint} (layers, width, "
            f"vocabulary); {target.name}'s is {found}: train one for it with `ddtree train`"
        )


def check_tokenizer(folder: Path, tokenizer: Any) -> None:
    """Compares the checkpoint's own tokenizer.json, if it has one, with the target's tokenizer. Raises
    ValueError with example ids that stand for different tokens."""
    file = folder / "tokenizer.json"
    if not file.is_file():
        return
    from tokenizers import Tokenizer

    theirs = {token_id: token for token, token_id in Tokenizer.from_file(str(file)).get_vocab().items()}
    ours = {token_id: token for token, token_id in tokenizer.get_vocab().items()}
    differing = [token_id for token_id in sorted(theirs) if theirs[token_id] != ours.get(token_id)]
    if differing:
        examples = "; ".join(
            f"id {one} is {json.dumps(theirs[one])} there and {json.dumps(ours.get(one))} in the target"
            for one in differing[:3]
        )
        raise ValueError(f"its vocabulary is not the target's: {examples} ({len(differing)} ids in all)")


def read_tensors(folder: Path) -> dict[str, torch.Tensor]:
    """All tensors of the folder's safetensors, by name. Raises ValueError when it holds none."""
    from safetensors.torch import load_file

    tensors: dict[str, torch.Tensor] = {}
    for file in sorted(folder.glob("*.safetensors")):
        tensors.update(load_file(file))
    if not tensors:
        raise ValueError(f"{folder} holds no safetensors")
    return tensors
