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


def test_a_generator_is_shown_as_a_list_for_its_own_text_holds_an_address(tmp_path: Path) -> None:
    (tmp_path / "t.jinja").write_text("{{ messages | map(attribute='role') }}" + SAYS)
    rows = write_chats(tmp_path / "a.jsonl", [CHAT])
    (text,) = marked(
        read_blocks_of(rows, example_settings(template_at(tmp_path / "t.jinja"), "all"))
    )
    assert "['user', 'assistant']" in text


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet", ".arrow"])
def test_answers_that_do_not_fit_one_message_come_in_order(tmp_path: Path, suffix: str) -> None:
    """Rows are rendered ahead in batches, bad ones among them."""
    (tmp_path / "t.jinja").write_text(
        "{% if messages[0].content == '7' %}{{ raise_exception('no') }}{% endif %}"
        "{{ messages[0].content * 9999 }}" + SAYS
    )
    chats = [[{"role": "user", "content": str(number)}, CHAT[1]] for number in range(300)]
    rows = write_chats(tmp_path / f"a{suffix}", chats)
    settings = example_settings(template_at(tmp_path / "t.jinja"), bad_text="skip")
    blocks = read_blocks_of(rows, settings)
    expected = [str(number) * 9999 for number in range(300) if number != 7]
    assert [text.partition("\ufdd8")[0] for text in marked(blocks)] == expected
    assert sum(block.bad_count for block in blocks) == 1


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
