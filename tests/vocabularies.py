"""Rank files for the tests: a small one, and those of cl100k_base and o200k_base from the package registry.

A wheel on PyPI (llama-index-core) carries both as a filled tiktoken cache. It is downloaded once into
`.cache/` of the checkout, never installed, and the files are checked against tiktoken's pinned sha256.
"""

from __future__ import annotations

import hashlib
import importlib.resources
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import pytest

_WHEEL = "llama-index-core==0.14.25"
_FOLDER = Path(__file__).parent.parent / ".cache" / "vocabularies"
_IN_WHEEL = {
    "cl100k_base": (
        "9b5ad71b2ce5302211f9c61530b329a4922fc6a4",
        "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7",
    ),
    "o200k_base": (
        "fb374d419588a4632f3f557e76b4b70aebbca790",
        "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d",
    ),
}


def rank_file(name: str) -> Path:
    """The `.tiktoken` file of a published encoding; skips the test when no registry can be reached."""
    path = _FOLDER / f"{name}.tiktoken"
    if not path.exists():
        _fill()
    assert hashlib.sha256(path.read_bytes()).hexdigest() == _IN_WHEEL[name][1]
    return path


def small_rank_file() -> Path:
    """GPT-2's first 1000 tokens: an encoder in milliseconds, where the tokenizer is not the subject."""
    path = _FOLDER / "small.gpt2.tiktoken"
    if not path.exists():
        ranks = importlib.resources.files("lowtide.tokenizer") / "data" / "r50k_base.tiktoken"
        _FOLDER.mkdir(parents=True, exist_ok=True)
        partial = _FOLDER / f"small.{os.getpid()}.partial"
        partial.write_bytes(b"".join(ranks.read_bytes().splitlines(keepends=True)[:1000]))
        partial.replace(path)
    return path


def _fill() -> None:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", folder, _WHEEL]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"{_WHEEL} with the rank files cannot be downloaded: {done.stderr[-200:]}")
        wheel = next(Path(folder).glob("*.whl"))
        _FOLDER.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(wheel) as archive:
            for name, (cache_name, _) in _IN_WHEEL.items():
                data = archive.read(f"llama_index/core/_static/tiktoken_cache/{cache_name}")
                partial = _FOLDER / f"{name}.{os.getpid()}.partial"
                partial.write_bytes(data)
                partial.replace(_FOLDER / f"{name}.tiktoken")
