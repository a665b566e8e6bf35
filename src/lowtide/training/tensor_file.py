"""safetensors files, written one tensor at a time: a model of any size costs the memory of its largest tensor.

    8 bytes: length of the header · header as JSON · the tensors' bytes, one behind another

The safetensors library reads them. Its own writer wants all tensors on the CPU at once.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch
import xxhash
from torch import Tensor

from lowtide.errors import VerificationError
from lowtide.model.tensor_files import need_safetensors
from lowtide.storage.publish import storage_errors, sync_file

_KINDS = {
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.uint8: "U8",
    torch.int64: "I64",
}


def write_tensors(path: Path, tensors: Iterable[tuple[str, Tensor]]) -> str:
    """Write and sync the file; the digest of all its bytes."""
    listed = list(tensors)
    header = _header(listed)
    state = xxhash.xxh3_128()
    with storage_errors(path), path.open("wb") as file:
        for piece in _pieces(header, listed):
            file.write(piece)
            state.update(piece)
        file.flush()
        sync_file(file.fileno())
    return state.hexdigest()


@torch.no_grad()
def read_tensors(path: Path, into: Iterable[tuple[str, Tensor]]) -> None:
    """Fill tensors at hand from the file, one at a time; VerificationError where one is missing or other."""
    need_safetensors()
    from safetensors import SafetensorError, safe_open

    try:
        with storage_errors(path, doing="read"), safe_open(path, "pt") as file:
            names = set(file.keys())
            for name, target in into:
                if name not in names:
                    raise _other(path, f"has no tensor {name}")
                found = file.get_tensor(name)
                if found.shape != target.shape or found.dtype != target.dtype:
                    raise _other(path, f"has another shape or type of {name}")
                target.copy_(found)
    except SafetensorError as cause:
        raise _other(path, f"cannot be read ({cause})") from cause


def _other(path: Path, what: str) -> VerificationError:
    return VerificationError(
        f"{path} {what}", remedy=f"remove {path.parent} to go on from the checkpoint before it"
    )


def _header(tensors: list[tuple[str, Tensor]]) -> bytes:
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, tensor in tensors:
        size = _size(tensor)
        entries[name] = {
            "dtype": _KINDS[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [at, at + size],
        }
        at += size
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # tensors begin at a multiple of 8
    return len(text).to_bytes(8, "little") + text


def _size(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _pieces(header: bytes, tensors: list[tuple[str, Tensor]]) -> Iterator[bytes | memoryview]:
    yield header
    for _, tensor in tensors:
        plain = tensor.detach().contiguous().cpu()
        if plain.numel():
            yield plain.reshape(-1).view(torch.uint8).numpy().data
