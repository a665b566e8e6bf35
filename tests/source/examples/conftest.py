"""What every test of examples ends with."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.source.examples.rows import close_templates


@pytest.fixture(autouse=True)
def _no_process_outlives_a_test() -> Iterator[None]:
    """An error that a test keeps would keep the template too, and with it a process."""
    yield
    close_templates()
