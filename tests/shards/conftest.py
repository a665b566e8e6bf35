"""Where this room's tests write: thousands of small files, each synced."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.shards.streams import fresh_folder


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A folder in memory where that is possible: an fsync on a busy disk takes 10 ms."""
    with fresh_folder() as folder:
        yield folder
