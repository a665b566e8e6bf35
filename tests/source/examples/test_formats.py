"""Every format gives the same stream, at any block size and from any block's end."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import get_args

import numpy as np
import pyarrow as pa
import pytest
import zstandard

from lowtide.errors import DataError, UsageError
from lowtide.settings import BadText, ExampleKind
from lowtide.source.blocks import Block
from lowtide.source.examples.built_in import CHATML
from lowtide.source.examples.marks import LEARNT_CLOSE, LEARNT_OPEN
from lowtide.source.examples.templates import parse_columns
from lowtide.source.find_inputs import find_inputs
from lowtide.source.parts import parts_from
from lowtide.source.read_parquet import open_parquet, read_batches
from lowtide.source.stream import Cursor, read_blocks
from lowtide.units import KIB, MIB
from tests.source.examples.rows import (
    END_OF_TEXT,
    WITH_BLOCKS,
    example_settings,
    marked,
    read_blocks_of,
    template_at,
    write_chats,
    write_table,
)
from tests.source.readings import START

FORMATS = ["a.jsonl", "a.parquet", "a.arrow"]


def make_chats(count: int) -> list[list[dict[str, str]]]:
    """Conversations of very different lengths, one of them longer than the smaller blocks."""
    return [
        [
            {"role": "user", "content": f"question {number} é " * (number % 7)},
            {"role": "assistant", "content": "answer " * (20_000 if number == 5 else number % 50)},
        ]
        * (1 + number % 3)
        for number in range(count)
    ]


def laid_end_to_end(blocks: list[Block]) -> tuple[bytes, list[list[int]], int]:
    """Text, learnt spans and count of bad rows, whatever the blocks."""
    spans, before = [], 0
    for block in blocks:
        spans.append(block.learnt + before)
        before += len(block.text)
    learnt = np.concatenate(spans).tolist() if spans else []
    return b"".join(b.text for b in blocks), learnt, sum(b.bad_count for b in blocks)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("template", ["chatml", "plain", "jinja"])
def test_block_size_changes_nothing_and_every_block_can_be_resumed(
    tmp_path: Path, name: str, template: str
) -> None:
    jinja = tmp_path / "t.jinja"
    jinja.write_text(WITH_BLOCKS)
    chats: list[object] = [*make_chats(120)]
    chats[17] = None if name != "a.jsonl" else 3
    chats[50] = []
    path = write_chats(tmp_path / name, chats)
    settings = example_settings(
        template_at(jinja if template == "jinja" else template), bad_text="skip"
    )
    inputs = find_inputs([str(path)])
    whole = laid_end_to_end(read_blocks_of(path, settings))
    assert whole[2] == 2
    for block_bytes in (KIB, 64 * KIB, MIB):
        sized = replace(settings, block_bytes=block_bytes)
        blocks = read_blocks_of(path, sized)
        assert laid_end_to_end(blocks) == whole
        step = max(1, len(blocks) // 8)
        for index in range(0, len(blocks), step):
            after = Cursor.from_list(json.loads(json.dumps(blocks[index].after.as_list())))
            rest = list(read_blocks(inputs, sized, start=after))
            assert laid_end_to_end([*blocks[: index + 1], *rest]) == whole


def test_all_formats_give_the_same_stream(tmp_path: Path) -> None:
    chats = make_chats(60)
    settings = example_settings(template_at("chatml"))
    plain = laid_end_to_end(read_blocks_of(write_chats(tmp_path / "a.jsonl", chats), settings))
    data = (tmp_path / "a.jsonl").read_bytes()
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(data))
    (tmp_path / "c.jsonl.zst").write_bytes(zstandard.compress(data))
    (tmp_path / "d.jsonl").write_bytes(b"\xef\xbb\xbf" + data.replace(b"\n", b"\r\n\r\n"))
    (tmp_path / "e.jsonl").write_bytes(data.removesuffix(b"\n"))
    write_chats(tmp_path / "f.parquet", chats)
    write_chats(tmp_path / "g.arrow", chats)
    string = pa.dictionary(pa.int32(), pa.string())
    message = pa.struct(
        {"role": string, "content": pa.large_string(), "extra": pa.list_(pa.int8())}
    )
    large = pa.table({"messages": pa.array(chats, pa.large_list(message))})
    write_table(tmp_path / "h.parquet", large)
    write_table(tmp_path / "i.arrow", large)
    columns = [{key: [m[key] for m in chat] for key in ("role", "content")} for chat in chats]
    write_chats(tmp_path / "j.parquet", columns)
    write_chats(tmp_path / "k.arrow", columns)
    for path in sorted(tmp_path.iterdir()):
        assert laid_end_to_end(read_blocks_of(path, settings)) == plain, path.name


@pytest.mark.slow
def test_a_folder_that_datasets_saved_is_read(tmp_path: Path) -> None:
    import datasets

    chats = make_chats(20)
    datasets.Dataset.from_dict({"messages": chats}).save_to_disk(tmp_path / "saved")
    settings = example_settings(template_at("chatml"))
    saved = list(read_blocks(find_inputs([str(tmp_path / "saved")]), settings, start=START))
    lines = read_blocks_of(write_chats(tmp_path / "a.jsonl", chats), settings)
    assert laid_end_to_end(saved) == laid_end_to_end(lines)


@pytest.mark.parametrize("suffix", ["jsonl", "parquet", "arrow"])
def test_other_kinds_and_other_names_become_turns(tmp_path: Path, suffix: str) -> None:
    def read(
        kind: ExampleKind,
        rows: list[dict[str, object]],
        column: str | None = None,
        name: Path | None = None,
    ) -> list[str]:
        path = tmp_path / f"a.{suffix}"
        if suffix == "jsonl":
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        else:
            write_table(path, pa.Table.from_pylist(rows))
        template = template_at(name, kind, special={})
        settings = example_settings(template, kind=kind, columns=parse_columns(column, kind))
        texts = marked(read_blocks_of(path, settings))
        return [text.replace(LEARNT_OPEN, "«").replace(LEARNT_CLOSE, "»") for text in texts]

    asked = "<|im_start|>user\nDo\n\nthis<|im_end|>\n<|im_start|>assistant\n«Done<|im_end|>»\n"
    short = asked.replace("\n\nthis", "")
    rows: list[dict[str, object]] = [
        {"instruction": "Do", "input": "this", "output": "Done"},
        {"instruction": "Do", "input": "", "output": "Done"},
        {"instruction": "Do", "input": None, "output": "Done"},
    ]
    assert read("instruction", rows) == [asked, short, short]
    assert read("instruction", [{"instruction": "Do", "output": "Done"}]) == [short]
    other: list[dict[str, object]] = [{"q": "Do", "input": "this", "a": "Done"}]
    assert read("instruction", other, "instruction=q,output=a") == [asked]
    pair: list[dict[str, object]] = [{"prompt": "1+1=", "completion": "2"}]
    assert read("completion", pair) == [f"1+1=«2{END_OF_TEXT}»"]
    shared: list[dict[str, object]] = [
        {"c": [{"from": "human", "value": "Do"}, {"from": "gpt", "value": "Done", "x": 1}]}
    ]
    assert read("chat", shared, "messages=c,role=from,content=value") == [short]
    jinja = tmp_path / "t.jinja"
    jinja.write_text(CHATML)
    assert read("chat", shared, "messages=c,role=from,content=value", jinja) == [short]
    assert read("instruction", rows, None, jinja) == [asked, short, short]


@pytest.mark.parametrize("name", FORMATS)
def test_the_tail_is_held_out_by_position(tmp_path: Path, name: str) -> None:
    path = write_chats(tmp_path / name, make_chats(30))
    settings = example_settings(template_at("plain"))
    whole = marked(read_blocks_of(path, settings))
    asked = 20 if name != "a.jsonl" else path.stat().st_size - 3000
    tailed = replace(settings, tail=Cursor(file=0, position=asked))
    blocks = read_blocks_of(path, tailed)
    kept = marked([block for block in blocks if not block.held_out])
    held = marked([block for block in blocks if block.held_out])
    assert kept + held == whole
    assert held
    assert kept


def test_text_files_hold_no_examples(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("words")
    with pytest.raises(UsageError, match=r"a\.txt is read as text") as caught:
        read_blocks_of(path, example_settings(template_at("chatml")))
    assert "JSONL" in caught.value.remedy


@pytest.mark.parametrize("name", FORMATS)
def test_an_example_is_never_cut_and_one_too_large_is_refused(tmp_path: Path, name: str) -> None:
    chats = [[{"role": "assistant", "content": "x " * size}] for size in (10, 200_000, 20)]
    path = write_chats(tmp_path / name, chats)
    settings = example_settings(template_at("plain"), block_bytes=KIB)
    for block in read_blocks_of(path, settings):
        assert block.text.endswith(settings.delimiter)
        assert block.after.within == 0
    for policy in get_args(BadText):
        small = replace(settings, document_limit_bytes=300_000, bad_text=policy)
        with pytest.raises(DataError, match=r"a\.\w+.*KiB") as caught:
            read_blocks_of(path, small)
        assert "--memory" in caught.value.remedy


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("policy", get_args(BadText))
def test_an_example_that_the_template_makes_too_large_is_refused_by_every_policy(
    tmp_path: Path, name: str, policy: BadText
) -> None:
    """A larger budget would take it, so to leave it out would let the budget change the output."""
    jinja = tmp_path / "t.jinja"
    jinja.write_text("{% generation %}{{ messages[0].content * 100000 }}{% endgeneration %}")
    chats = [[{"role": "assistant", "content": text}] for text in ("", "x", "yyyyyy", "z")]
    path = write_chats(tmp_path / name, chats[1:])
    limited = example_settings(template_at(jinja), document_limit_bytes=300_000, bad_text=policy)
    with pytest.raises(DataError, match=r"a\.\w+, (line 2|row 2).*takes 585\.9 KiB") as caught:
        read_blocks_of(path, limited)
    assert "--memory" in caught.value.remedy
    blocks = read_blocks_of(path, replace(limited, document_limit_bytes=600_000))
    assert sum(block.document_count for block in blocks) == 3


def test_reading_holds_a_few_blocks_whatever_the_size(tmp_path: Path) -> None:
    """Sixty megabytes of Arrow memory at once would be a row group of Parquet read whole."""
    chat = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "words " * 2000}]
    table = pa.table({"messages": [chat] * 5000})
    settings = example_settings(template_at("chatml"), block_bytes=256 * KIB)
    for name in ("a.parquet", "a.arrow"):
        path = write_table(tmp_path / name, table, group_rows=5000)
        before, peak, count = pa.total_allocated_bytes(), 0, 0
        for block in read_blocks(find_inputs([str(path)]), settings, start=START):
            count += block.document_count
            assert len(block.text) < MIB
            peak = max(peak, pa.total_allocated_bytes() - before)
        assert count == 5000
        assert peak < 8 * MIB, name


SKEWED = {
    "long lists": (1000, 200),
    "longer lists of short texts": (10, 20_000),
    "long texts": (200_000, 1),
}


@pytest.mark.slow
@pytest.mark.parametrize(("size", "length"), SKEWED.values(), ids=SKEWED)
@pytest.mark.parametrize("column", ["messages", "a.messages"])
@pytest.mark.parametrize("alike", [False, True])
def test_a_cluster_of_long_chats_is_read_a_few_blocks_at_a_time(
    tmp_path: Path, size: int, length: int, column: str, alike: bool
) -> None:
    """A thousand short rows before them say nothing of what is to come. Texts that are all alike are stored
    once: then a batch may take as much as one document."""
    texts = [f"{0 if alike else number} ".ljust(size, "x") for number in range(length * 50)]
    messages = [{"role": "user", "content": text} for text in texts]
    rows = [[{"role": "user", "content": "x"}]] * 1000
    rows += [messages[start : start + length] for start in range(0, len(messages), length)]
    held: list[object] = (
        [*rows] if column == "messages" else [{"messages": row, "id": 1} for row in rows]
    )
    table = pa.table({column.split(".")[0]: held})
    path = write_table(tmp_path / "a.parquet", table, group_rows=2000)
    settings = example_settings(template_at("chatml"), block_bytes=64 * KIB)
    (part,) = parts_from(START, find_inputs([str(path)])[0], settings)
    leaves = [f"{column}.list.element.{key}" for key in ("role", "content")]
    most_bytes = settings.document_limit_bytes * 5 // 4 if alike else 5 * settings.block_bytes
    count = 0
    with open_parquet(part) as file:
        for batch in read_batches(file, part, leaves):
            count += len(batch.rows)
            assert len(batch.rows) == 1 or batch.rows.nbytes < most_bytes
    assert count == len(rows)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        *(("a=b", "chat"), ("role=", "chat"), ("role=x,role=y", "chat"), ("role=content", "chat")),
        *(("q", "completion"), ("prompt=completion", "completion"), ("", "chat")),
    ],
)
def test_columns_that_say_nothing_are_refused(text: str, kind: ExampleKind) -> None:
    with pytest.raises(UsageError) as caught:
        parse_columns(text, kind)
    assert caught.value.remedy


def test_columns_by_name() -> None:
    assert parse_columns(None, "chat") == {}
    assert parse_columns("text", "chat") == {"messages": "text"}
    assert parse_columns("conversations", "chat") == {"messages": "conversations"}
    assert parse_columns("prompt=q, completion=a", "completion") == {
        "prompt": "q",
        "completion": "a",
    }
