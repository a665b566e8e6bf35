"""The tensors of safetensors files by their names, read when they are asked for and kept by nobody."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from torch import Tensor

from lowtide.errors import DataError, UsageError, VerificationError
from lowtide.model.shape import ModelShape
from lowtide.storage.decode_json import FileName, decode_json
from lowtide.storage.publish import storage_errors
from lowtide.units import format_bytes, format_count

WEIGHTS_NAME = "model.safetensors"
INDEX_NAME = "model.safetensors.index.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Index:
    """Which file of several holds a tensor."""

    weight_map: dict[str, FileName]


class TensorFiles(Mapping[str, Tensor]):
    """All tensors of one or several files. A tensor is the file itself, mapped: it costs page cache only."""

    def __init__(self, paths: list[Path]) -> None:
        self._files: dict[str, Any] = {}
        for path in paths:
            opened = _open(path)
            self._files.update(dict.fromkeys(opened.keys(), opened))

    def __getitem__(self, name: str) -> Tensor:
        tensor: Tensor = self._files[name].get_tensor(name)
        return tensor

    def __contains__(self, name: object) -> bool:
        return name in self._files  # Mapping's own would read the tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)


def weight_files(folder: Path) -> list[Path]:
    """The files that hold a Hugging Face model's weights: one, or those that its index names."""
    if (folder / WEIGHTS_NAME).exists():
        return [folder / WEIGHTS_NAME]
    index = folder / INDEX_NAME
    if not index.exists():
        raise DataError(
            f"{folder} holds no {WEIGHTS_NAME}",
            remedy="save the model with transformers' `save_pretrained`, which writes safetensors",
        )
    try:
        named = set(decode_json(index.read_bytes(), _Index).weight_map.values())
        return [folder / name for name in sorted(named)]
    except msgspec.DecodeError as error:
        raise DataError(
            f"{index} is not an index of weights: {error}", remedy="put it back from a copy"
        ) from error


def check_size(shape: ModelShape, files: list[Path], *, described_by: Path) -> None:
    """VerificationError where the files are too small for the model that a record or config describes.

    Such a file says anything, and torch asks for the memory before a tensor is compared: 110 GB for one number.
    """
    with storage_errors(files[0], doing="read"):
        size_bytes = sum(path.stat().st_size for path in files if path.exists())
    if shape.parameter_count > size_bytes:  # no kind of number takes less than a byte
        raise VerificationError(
            f"{described_by} describes a model of {format_count(shape.parameter_count)} parameters, and "
            f"{files[0]} holds {format_bytes(size_bytes)}: they do not belong together",
            remedy=f"put {described_by.name} and {files[0].name} back from a copy",
        )


def need_safetensors() -> None:
    """UsageError where the library that reads weights is not installed: torch alone does not bring it."""
    if importlib.util.find_spec("safetensors") is None:
        raise UsageError(
            "weights are read by safetensors, which is not installed",
            remedy="`pip install 'lowtide[train]'`",
        )


def _open(path: Path) -> Any:
    need_safetensors()
    from safetensors import SafetensorError, safe_open

    try:
        return safe_open(path, framework="pt")
    except (SafetensorError, OSError) as error:
        raise DataError(
            f"cannot read {path}: {error}", remedy=f"put {path.name} back from a copy"
        ) from error
