"""Templates that are odd and not evil: what they give is right, or it is refused."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lowtide.errors import DataError, LowtideError, UsageError
from tests.source.examples.rows import (
    example_settings,
    marked,
    read_blocks_of,
    template_at,
    write_chats,
)

CHAT = [{"role": "user", "content": "ask"}, {"role": "assistant", "content": "  abc  "}]
SAYS = "{% generation %}{{ messages[1].content }}{% endgeneration %}"


@pytest.mark.parametrize(
    "source",
    [
        "FIRST {% set x %}" + SAYS + "{% endset %}{{ x | reverse }} LAST",
        "{% for m in messages recursive %}{% if m is string %}{% generation %}{{ m }}"
        "{% endgeneration %}{% else %}[{{ loop([m.content]) | trim }}]{% endif %}{% endfor %}",
        "{% block a %}" + SAYS + "{% endblock %}{{ self.a() | length }}",
    ],
    ids=["reversed", "trimmed in a loop", "measured"],
)
def test_a_block_that_is_worked_on_is_refused(tmp_path: Path, source: str) -> None:
    (tmp_path / "t.jinja").write_text(source)
    rows = write_chats(tmp_path / "a.jsonl", [CHAT])
    with pytest.raises(DataError, match="after the block"):
        read_blocks_of(rows, example_settings(template_at(tmp_path / "t.jinja")))


@pytest.mark.parametrize(
    "source",
    [
        "{{ cycler() }}",
        "{{ '\\ud800' }}",
        "{{ '%c' % 55296 }}",
        "{{ ('f' * 8000000) | int(0, 16) }}",
    ],
)
def test_a_fault_of_the_template_is_told_as_its_own(tmp_path: Path, source: str) -> None:
    (tmp_path / "t.jinja").write_text(SAYS + source)
    rows = write_chats(tmp_path / "a.jsonl", [CHAT])
    with pytest.raises(LowtideError, match=r"t\.jinja"):
        read_blocks_of(rows, example_settings(template_at(tmp_path / "t.jinja")))


@pytest.mark.parametrize("source", ["\ufdd8", "{{ '\\ufdd1' + '0' }}"])
def test_a_template_cannot_write_our_marks(tmp_path: Path, source: str) -> None:
    (tmp_path / "t.jinja").write_text(SAYS + source)
    with pytest.raises(UsageError, match="U\\+FDD"):
        template_at(tmp_path / "t.jinja")


def test_what_no_count_knows_ends_by_the_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lowtide.source.examples.metering.LONGEST_SECONDS", 0.05)
    (tmp_path / "t.jinja").write_text("{% for a in range(300000) %}{{ a }}{% endfor %}" + SAYS)
    rows = write_chats(tmp_path / "a.jsonl", [CHAT])
    with pytest.raises(DataError, match="seconds for one example"):
        read_blocks_of(rows, example_settings(template_at(tmp_path / "t.jinja"), bad_text="skip"))


def test_a_row_group_without_rows_is_stepped_over(tmp_path: Path) -> None:
    table = pa.table({"messages": [CHAT] * 3})
    with pq.ParquetWriter(tmp_path / "a.parquet", table.schema) as writer:
        for part in (table, table.slice(0, 0), table):
            writer.write_table(part)
    (tmp_path / "t.jinja").write_text(SAYS)
    texts = marked(
        read_blocks_of(tmp_path / "a.parquet", example_settings(template_at(tmp_path / "t.jinja")))
    )
    assert len(texts) == 6
