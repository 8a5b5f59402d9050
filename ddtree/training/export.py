"""The export stage: the trained weights as a checkpoint that `load_drafter` takes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from ddtree.training.evaluate import Shape, Tally
from ddtree.training.files import write_atomically


def export(
    folder: Path,
    config: dict[str, Any],
    names: list[str],
    weights: list[torch.Tensor],
    scales: torch.Tensor,
    token_ids: torch.Tensor | None = None,
) -> None:
    """Writes config.json and model.safetensors (bfloat16). names: the weights'; scales [taps * H]: what
    features were multiplied by in training, which `fc` takes over here. token_ids int64, ascending: the
    tokens that it drafts, kept as a table of offsets (their rows of the output head are the target's); None:
    all."""
    from safetensors.torch import save

    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: weight.detach().float().cpu() for name, weight in zip(names, weights, strict=True)}
    tensors["fc.weight"] = tensors["fc.weight"] * scales.float().cpu()
    kept = {name: tensor.to(torch.bfloat16).contiguous() for name, tensor in tensors.items()}
    if token_ids is not None:
        kept["d2t"] = token_ids - torch.arange(len(token_ids))
    write_atomically(folder / "model.safetensors", save(kept, metadata={"format": "pt"}))
    write_atomically(folder / "config.json", (json.dumps(config, indent=2) + "\n").encode())


def figures(pooled: dict[float, dict[Shape, Tally]]) -> dict[str, Any]:
    """The evaluate stage's tallies as JSON: by temperature and tree."""
    return {
        f"{temperature:g}": {
            str(shape): {
                "accepted_drafts_per_step": round(tally.per_step, 4),
                "accepted_drafts": tally.accepted_drafts,
                "steps": tally.steps,
                "reached": tally.reached,
            }
            for shape, tally in tallies.items()
        }
        for temperature, tallies in pooled.items()
    }


def table(found: dict[str, Any]) -> str:
    """`figures` as a Markdown table: accepted drafts per step."""
    shapes = list(next(iter(found.values()), {}))
    lines = ["| temperature | " + " | ".join(shapes) + " |", "|---" * (len(shapes) + 1) + "|"]
    for temperature, row in found.items():
        cells = [f"{row[shape]['accepted_drafts_per_step']:.2f}" for shape in shapes]
        lines.append(f"| {temperature} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"
