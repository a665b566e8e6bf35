"""Pinned memory and copies to the GPU. Skipped where there is none; docs/benchmarks.md tells of a run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lowtide import TokenDataset

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokens") / "train.bin"
    np.random.default_rng(0).integers(4, 50257, 20_000_000, dtype=np.uint16).tofile(path)
    return path


def test_batches_lie_in_pinned_memory(tokens: Path) -> None:
    dataset = TokenDataset(tokens)
    loader = dataset.loader(8)
    for k, (x, y) in zip(range(20), loader, strict=False):
        assert x.is_pinned()
        assert y.is_pinned()
        assert np.array_equal(x.numpy(), dataset.batch(k, 8)[0])
    loader.close()


def test_copies_that_are_late_still_get_their_own_batch(tokens: Path) -> None:
    """The GPU is kept busy, so that copies wait while later batches are read and earlier ones dropped."""
    dataset = TokenDataset(tokens)
    loader = dataset.loader(32, device="cuda", prefetch=4)
    busy = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    sums = []
    for k, (x, y) in zip(range(300), loader, strict=False):
        if k % 20 == 0:
            busy = busy @ busy
        weights = torch.arange(x.numel(), device="cuda").reshape(x.shape)
        sums.append((x * weights).sum() + (y * weights).sum())
    loader.close()
    weights = np.arange(32 * 1024, dtype=np.int64).reshape(32, 1024)
    for k, found in enumerate(sums):
        x, y = dataset.batch(k, 32)
        assert int(found) == int((x * weights).sum() + (y * weights).sum()), k
