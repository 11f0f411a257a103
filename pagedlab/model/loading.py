"""From a folder on disk to a model in memory.

>>> loaded = load_model("quill")
>>> loaded.name, loaded.model.config.num_hidden_layers
('quill', 5)
>>> load_model("quil")
Traceback (most recent call last):
pagedlab.errors.ModelError: there is no model 'quil': give the name of a shipped one (quill) or a folder that holds ...

A model folder is what Hugging Face calls one: ``config.json`` and one or more ``*.safetensors`` files.

vLLM counterpart: ``vllm/model_executor/model_loader/default_loader.py`` (``DefaultModelLoader``) at 0.25.1. What
differs: folders only (nothing is ever downloaded), safetensors only (a pickle can run code), one architecture.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from pagedlab.errors import ConfigError, ModelError
from pagedlab.model.config import DecoderConfig
from pagedlab.model.decoder import Decoder
from pagedlab.model.tokenizer import ByteTokenizer

WEIGHTS = Path(__file__).parent / "weights"
"""Where the shipped models are."""

DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in (torch.float32, torch.bfloat16, torch.float64)}


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model that is ready to run, with the tokenizer that speaks its language."""

    model: Decoder
    tokenizer: ByteTokenizer
    name: str


def load_model(
    name_or_path: str | os.PathLike[str] = "quill",
    *,
    device: str | torch.device = "cpu",
    dtype: str | torch.dtype | None = None,
) -> LoadedModel:
    """Load a shipped model by name, or any model folder.

    Parameters
    ----------
    name_or_path : str or path
        ``"quill"``, or a folder with ``config.json`` and ``*.safetensors``.
    device : str or torch.device
        Where its weights go; ``"auto"``: to a GPU if there is one.
    dtype : str, torch.dtype or None
        What it computes in: ``float32``, ``bfloat16`` or ``float64`` (for exact tests). None means float32 on a CPU,
        which has no fast bfloat16, and bfloat16 elsewhere.

    Returns
    -------
    LoadedModel
        In evaluation mode, its parameters without gradients.

    Raises
    ------
    ModelError
        If the folder, a file or the device does not fit; the message says which and what to do.
    """
    folder = _find(name_or_path)
    target = _device(device)
    config = _read_config(folder / "config.json")
    tokenizer = ByteTokenizer()
    if config.vocab_size != tokenizer.vocab_size:
        raise ModelError(
            f"{folder} has a vocabulary of {config.vocab_size} tokens; only the byte tokenizer's "
            f"{tokenizer.vocab_size} can be read"
        )
    model = Decoder(config)
    model.load_weights(_read_weights(folder))
    model.to(device=target, dtype=_dtype(dtype, target)).eval().requires_grad_(False)
    return LoadedModel(model, tokenizer, folder.name)


def _find(name_or_path: str | os.PathLike[str]) -> Path:
    shipped = sorted(folder.name for folder in WEIGHTS.iterdir() if folder.is_dir())
    folder = WEIGHTS / name_or_path if name_or_path in shipped else Path(name_or_path)
    if not folder.is_dir():
        raise ModelError(
            f"there is no model {os.fspath(name_or_path)!r}: give the name of a shipped one ({', '.join(shipped)}) "
            "or a folder that holds config.json and *.safetensors"
        )
    return folder.resolve()


def _read_config(file: Path) -> DecoderConfig:
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelError(f"{file.parent} has no config.json: is it a model folder?") from None
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ModelError(f"{file} is not JSON ({error}): copy it again from where the model came from") from error
    if not isinstance(values, dict):
        raise ModelError(f"{file} holds a {type(values).__name__}, not the object that a config is")
    try:
        return DecoderConfig.from_dict(values)
    except ConfigError as error:
        raise ModelError(f"{file} describes no model that pagedlab can run: {error}") from error


def _read_weights(folder: Path) -> dict[str, torch.Tensor]:
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise ModelError(f"{folder} has no *.safetensors file: copy the model's weights there")
    weights: dict[str, torch.Tensor] = {}
    for file in files:
        try:
            weights |= load_file(file)
        except SafetensorError as error:
            raise ModelError(
                f"{file} is damaged or cut short ({error}): copy it again from where the model came from"
            ) from error
    return weights


def _device(device: str | torch.device) -> torch.device:
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        target = torch.device(device)
    except RuntimeError:
        raise ModelError(f"device {device!r} is unknown: give 'cpu' or 'cuda'") from None
    if target.type == "cuda" and not torch.cuda.is_available():
        raise ModelError(
            f"device {str(target)!r} is not there: torch sees no GPU; give 'cpu', or see `pagedlab doctor`"
        )
    return target


def _dtype(dtype: str | torch.dtype | None, device: torch.device) -> torch.dtype:
    if dtype is None:
        return torch.float32 if device.type == "cpu" else torch.bfloat16
    name = str(dtype).removeprefix("torch.")
    if name not in DTYPES:
        raise ModelError(f"dtype {name!r} is not one a model can compute in: give {', '.join(DTYPES)}")
    return DTYPES[name]
