"""Rows that are not examples: an error with file and row, or counted and left out. Their neighbours stay."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from lowtide.errors import DataError, UsageError
from lowtide.settings import ExampleKind
from tests.source.examples.rows import (
    WITH_BLOCKS,
    example_settings,
    marked,
    read_blocks_of,
    template_at,
    template_of,
    write_chats,
    write_table,
)

GOOD = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]


def chat(**last: object) -> list[dict[str, object]]:
    """A good conversation whose last message says something else."""
    return [GOOD[0], {"role": "assistant", "content": "x", **last}]  # type: ignore[list-item]


BAD_CHATS = {
    "null": (None, "'messages' is null"),
    "text": ("hello", "'messages' is a string"),
    "empty": ([], "'messages' is empty"),
    "a message of text": (["hi"], "message 1 is a string"),
    "content null": (chat(content=None), "'content' of message 2 is null"),
    "content a number": (chat(content=5), "'content' of message 2 is a number"),
    "content of parts": (chat(content=[{"type": "text"}]), "'content' of message 2 is an array"),
    "no content": ([GOOD[0], {"role": "assistant"}], "message 2 has no 'content'"),
    "no role": ([{"content": "x"}], "message 1 has no 'role'"),
    "role a number": (chat(role=1), "'role' of message 2 is a number"),
    "no answer": ([GOOD[0]], "nothing in it is learnt"),
    "another role": (chat(role="wizard"), "role 'wizard' is not known to template chatml"),
    "a reserved character": (chat(content="a\ufdd0b"), "holds U+FDD0"),
    "a learnt mark": (chat(content="\ufdd8"), "holds U+FDD8"),
}


@pytest.mark.parametrize(("bad", "reason"), BAD_CHATS.values(), ids=BAD_CHATS)
@pytest.mark.parametrize("template", ["chatml", "jinja"])
def test_a_bad_chat_is_named_or_skipped(
    tmp_path: Path, template: str, bad: object, reason: str
) -> None:
    jinja = tmp_path / "t.jinja"
    jinja.write_text(
        WITH_BLOCKS.replace(
            "{%- for message in messages %}",
            "{%- for message in messages %}{%- if message.role == 'wizard' %}"
            "{{ raise_exception(\"role 'wizard' is not known to template chatml\") }}{%- endif %}",
        )
    )
    path = write_chats(tmp_path / "a.jsonl", [GOOD, bad, GOOD])
    settings = example_settings(template_at(jinja if template == "jinja" else "chatml"))
    with pytest.raises(DataError, match=r"a\.jsonl, line 2 ") as caught:
        read_blocks_of(path, settings)
    assert reason in caught.value.problem
    assert "--bad-text skip" in caught.value.remedy
    for policy in ("skip", "replace"):
        (block,) = read_blocks_of(path, replace(settings, bad_text=policy))  # type: ignore[arg-type]
        assert (block.document_count, block.bad_count) == (2, 1)
        assert (block.bad[0].position, block.bad[0].unit) == (2, "line")
        assert reason in block.bad[0].reason


BAD_LINES = {
    "not json": (b"{oops", "not valid JSON"),
    "cut off": (b'{"messages": [{"role": "user", "con', "not valid JSON"),
    "an array": (b"[1]", "not a JSON object"),
    "too deep": (b'{"messages": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested too deeply"),
}
MENDED = {
    "not UTF-8": (b"h\xffi", "not valid UTF-8"),
    "a lone surrogate": (b"h\\ud800i", "a lone surrogate"),
}


@pytest.mark.parametrize(("line", "reason"), BAD_LINES.values(), ids=BAD_LINES)
def test_a_broken_line_is_named_or_skipped(tmp_path: Path, line: bytes, reason: str) -> None:
    good = json.dumps({"messages": GOOD}).encode()
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"\n".join([good, b"", b"  \r", line, good]))
    settings = example_settings(template_at("chatml"))
    with pytest.raises(DataError, match=r"a\.jsonl, line 4 .*" + reason):
        read_blocks_of(path, settings)
    (block,) = read_blocks_of(path, replace(settings, bad_text="skip"))
    assert (block.document_count, block.bad_count, block.bad[0].position) == (2, 1, 4)


@pytest.mark.parametrize(("content", "reason"), MENDED.values(), ids=MENDED)
@pytest.mark.parametrize("template", ["plain", "jinja"])
def test_damaged_text_is_replaced_where_that_is_asked_for(
    tmp_path: Path, content: bytes, reason: str, template: str
) -> None:
    jinja = tmp_path / "t.jinja"
    jinja.write_text(
        "{% for m in messages %}{% generation %}{{ m.content ~ m.more }}{% endgeneration %}{% endfor %}"
    )
    path = tmp_path / "a.jsonl"
    message = b'{"role": "assistant", "content": "' + content + b'", "more": ["' + content + b'"]}'
    path.write_bytes(b'{"messages": [' + message + b"]}\n")
    settings = example_settings(template_at(jinja if template == "jinja" else "plain", special={}))
    with pytest.raises(DataError, match=reason):
        read_blocks_of(path, settings)
    (skipped,) = read_blocks_of(path, replace(settings, bad_text="skip"))
    assert (skipped.document_count, skipped.bad_count) == (0, 1)
    blocks = read_blocks_of(path, replace(settings, bad_text="replace"))
    (text,) = marked(blocks)
    assert blocks[0].bad_count == 1
    shown = "h\ufffdi['h\ufffdi']" if template == "jinja" else "Assistant: "
    assert shown in text
    assert "h\ufffdi" in text


def test_what_json_alone_does_not_know_is_no_matter(tmp_path: Path) -> None:
    """`NaN` and huge numbers in other keys, keys that come twice, escapes."""
    path = tmp_path / "a.jsonl"
    messages = json.dumps(GOOD)
    path.write_text(
        f'{{"score": NaN, "messages": {messages}}}\n'
        f'{{"messages": {messages}, "big": 1{"0" * 400}}}\n'
        f'{{"messages": 1, "messages": {messages}}}\n'
        f'{{"\\u006dessages": {messages}}}\n'
    )
    blocks = read_blocks_of(path, example_settings(template_at("chatml")))
    assert len(set(marked(blocks))) == 1
    assert sum(block.document_count for block in blocks) == 4


def test_a_file_without_the_key_is_read_by_the_wrong_name(tmp_path: Path) -> None:
    path = write_chats(tmp_path / "a.jsonl", [GOOD, GOOD], column="conversations")
    for policy in ("fail", "skip"):
        settings = example_settings(template_at("chatml"), bad_text=policy)
        with pytest.raises(UsageError, match=r"line 1: no key 'messages'.*conversations") as caught:
            read_blocks_of(path, settings)
        assert "--column" in caught.value.remedy
    columns = {"messages": "conversations"}
    read_blocks_of(path, example_settings(template_at("chatml"), columns=columns))


def test_a_line_longer_than_the_limit_is_refused(tmp_path: Path) -> None:
    path = write_chats(
        tmp_path / "a.jsonl", [GOOD, [{"role": "assistant", "content": "x" * 99_000}]]
    )
    settings = example_settings(
        template_at("chatml"), block_bytes=1000, document_limit_bytes=50_000
    )
    with pytest.raises(DataError, match=r"a\.jsonl, line 2 .*48\.8 KiB") as caught:
        read_blocks_of(path, settings)
    assert "--memory" in caught.value.remedy


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
@pytest.mark.parametrize("template", ["chatml", "jinja"])
def test_bad_rows_of_columns_are_named_or_skipped(
    tmp_path: Path, suffix: str, template: str
) -> None:
    jinja = tmp_path / "t.jinja"
    jinja.write_text(WITH_BLOCKS)
    message = pa.struct({"role": pa.binary(), "content": pa.binary()})
    rows = [
        GOOD,
        None,
        [],
        [None],
        [{"role": "assistant", "content": None}],
        [{"role": "assistant", "content": b"a\xffb"}],
        GOOD,
    ]
    table = pa.table({"messages": pa.array(_encoded(rows), pa.list_(message))})
    path = write_table(tmp_path / f"a.{suffix}", table, group_rows=4)
    settings = example_settings(template_at(jinja if template == "jinja" else "chatml"))
    with pytest.raises(DataError, match=rf"a\.{suffix}, row 2: .*null") as caught:
        read_blocks_of(path, settings)
    assert "--bad-text skip" in caught.value.remedy
    blocks = read_blocks_of(path, replace(settings, bad_text="skip"))
    bad = [row for block in blocks for row in block.bad]
    assert [(row.position, row.unit) for row in bad] == [(n, "row") for n in range(2, 7)]
    assert len(marked(blocks)) == 2
    replaced = read_blocks_of(path, replace(settings, bad_text="replace"))
    assert "a\ufffdb" in marked(replaced)[1]
    assert sum(block.bad_count for block in replaced) == 5


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
def test_damaged_text_in_a_map_is_named_skipped_or_replaced(tmp_path: Path, suffix: str) -> None:
    jinja = tmp_path / "t.jinja"
    jinja.write_text(
        "{% for m in messages %}{% for key, value in m.more %}{{ key ~ '=' ~ value }} {% endfor %}"
        "{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}"
    )
    table = _with_damaged_map()
    path = write_table(tmp_path / f"a.{suffix}", table)
    settings = example_settings(template_at(jinja))
    with pytest.raises(DataError, match=rf"a\.{suffix}, row 2: not valid UTF-8"):
        read_blocks_of(path, settings)
    skipped = read_blocks_of(path, replace(settings, bad_text="skip"))
    assert sum(block.bad_count for block in skipped) == 1
    texts = marked(read_blocks_of(path, replace(settings, bad_text="replace")))
    assert texts == [f"k={value} \ufdd8x\ufdd9" for value in ("good", "a\ufffdb", "good")]


def _with_damaged_map() -> pa.Table:
    """Three rows whose messages hold a map of strings; one string is not UTF-8."""
    values = [b"good", b"a\xffb", b"good"]
    more = pa.array([[("k", value)] for value in values], pa.map_(pa.string(), pa.binary()))
    claimed = pa.map_(pa.string(), pa.string())
    keys, items = more.keys, more.items.view(pa.string())
    message = pa.StructArray.from_arrays(
        [
            pa.array(["assistant"] * 3),
            pa.array(["x"] * 3),
            pa.MapArray.from_arrays(more.offsets, keys, items).cast(claimed),
        ],
        ["role", "content", "more"],
    )
    return pa.table({"messages": pa.ListArray.from_arrays(pa.array([0, 1, 2, 3]), message)})


def test_an_empty_list_of_messages_is_bad_whatever_is_learnt(tmp_path: Path) -> None:
    kind = pa.list_(pa.struct({"role": pa.string(), "content": pa.string()}))
    table = pa.table({"messages": pa.array([GOOD, [], GOOD], kind)})
    path = write_table(tmp_path / "a.parquet", table)
    settings = example_settings(template_at("chatml"), "all", bad_text="skip")
    (block,) = read_blocks_of(path, settings)
    assert (block.document_count, block.empty_count) == (2, 0)
    assert block.bad[0].reason == "'messages' is empty"


def _encoded(rows: list[object]) -> list[object]:
    def encode(value: object) -> object:
        if isinstance(value, dict):
            return {key: encode(item) for key, item in value.items()}
        if isinstance(value, list):
            return [encode(item) for item in value]
        return value.encode() if isinstance(value, str) else value

    return [encode(row) for row in rows]


@pytest.mark.parametrize(
    ("columns", "kind", "problem"),
    [
        ({"text": ["a"]}, "chat", "has no column 'messages'; its columns are: text"),
        ({"messages": ["a"]}, "chat", "holds string, not messages"),
        ({"messages": [["a"]]}, "chat", "not messages"),
        ({"messages": [[{"from": "human"}]]}, "chat", "have no 'role'; they have: from"),
        ({"prompt": ["a"]}, "completion", "has no column 'completion'"),
        ({"prompt": ["a"], "completion": [1]}, "completion", "holds int64, not text"),
        ({"instruction": ["a"]}, "instruction", "has no column 'output'"),
    ],
)
@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
def test_columns_that_are_not_there_are_named(
    tmp_path: Path, suffix: str, columns: dict[str, object], kind: ExampleKind, problem: str
) -> None:
    path = write_table(tmp_path / f"a.{suffix}", pa.table(columns))
    with pytest.raises(UsageError) as caught:
        read_blocks_of(path, example_settings(template_at(None, kind), kind=kind))
    assert problem in caught.value.problem
    assert "--column" in caught.value.remedy


def test_a_lying_arrow_file_is_refused(tmp_path: Path) -> None:
    """Offsets of messages and of contents that point behind their column."""
    path = write_chats(tmp_path / "a.arrow", [GOOD] * 3)
    data = path.read_bytes()
    settings = example_settings(template_at("chatml"))
    offsets = b"".join(number.to_bytes(4, "little") for number in (0, 2, 4, 6))
    texts = b"".join(number.to_bytes(4, "little") for number in (0, 2, 4, 6, 8, 10, 12))
    assert data.count(offsets) >= 1
    assert data.count(texts) == 1
    for true, lie in ((offsets, (0, 2, 4, 1 << 30)), (texts, (0, 2, 4, 6, 8, 10, 1 << 30))):
        false = b"".join(number.to_bytes(4, "little") for number in lie)
        path.write_bytes(data.replace(true, false, 1))
        with pytest.raises(DataError, match="damaged"):
            read_blocks_of(path, settings)


def test_an_example_that_holds_the_delimiter_is_refused(tmp_path: Path) -> None:
    settings = example_settings(template_at("chatml"))
    content = settings.delimiter.decode()
    path = write_chats(tmp_path / "a.jsonl", [[{"role": "assistant", "content": content}]])
    with pytest.raises(DataError, match=r"a\.jsonl.*contains"):
        read_blocks_of(path, settings)


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow"])
@pytest.mark.parametrize("kind", [pa.timestamp("ns"), pa.duration("ns"), pa.time64("ns")], ids=str)
def test_times_are_rendered_to_the_microsecond_or_refused(
    tmp_path: Path, name: str, kind: pa.DataType
) -> None:
    """And what is not rendered may hold any time."""
    template = template_of("{% for m in messages %}{{ m.role }} {{ m.when }}{% endfor %}")
    rendered = []
    for nanoseconds in (1_234_567_000, 1_234_567_001):
        times = pa.array([nanoseconds] * 2, kind)
        fields = [pa.array([turn[key] for turn in GOOD]) for key in ("role", "content")]
        turns = pa.StructArray.from_arrays([*fields, times], ["role", "content", "when"])
        chats = pa.ListArray.from_arrays(pa.array([0, 2], pa.int32()), turns)
        table = pa.table({"messages": chats, "when": times[:1]})
        path = write_table(tmp_path / name, table)
        assert read_blocks_of(path, example_settings(template_at("chatml")))
        if nanoseconds % 1000:
            with pytest.raises(DataError) as caught:
                read_blocks_of(path, example_settings(template, learn="all"))
            assert name in caught.value.problem
            assert str(kind) in caught.value.problem
        else:
            rendered += marked(read_blocks_of(path, example_settings(template, learn="all")))
    assert len(rendered) == 1
    assert "01.234567" in rendered[0]
