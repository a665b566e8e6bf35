"""Separators, in windows of any size and from inside a document, part as the plainest split does."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowtide.source.separators import choose_separator
from tests.source.readings import MARK, joined, plain_split

LITERALS = ["--", "<|x|>", "\n\n", "-a-", "aa"]
KINDS = ["file", "line", "blank-line", *LITERALS]
TEXTS = st.lists(
    st.sampled_from(["a", "-", "--", "\n", "\n\n", "\r", " ", "<|x|>", "<|", "é"]), max_size=14
)


def convert_in_windows(
    text: bytes, kind: str, window_bytes: int, *, inside: bool
) -> tuple[bytes, int, int]:
    """Text, documents and empty documents, read as the reader of text files does it, but never cutting one."""
    separator = choose_separator(kind, MARK)
    converted = []
    size = window_bytes
    while True:
        data, at_end = text[:size], size >= len(text)
        end = len(data) if at_end else separator.end_of_last(data, inside=inside)
        if end or at_end:
            converted.append(separator.convert(data[:end], inside=inside, at_end=at_end))
            text, size, inside = text[end:], window_bytes, False
        else:
            size += 1
        if at_end:
            break
    return (
        b"".join(one.text for one in converted),
        sum(one.document_count for one in converted),
        sum(one.empty_count for one in converted),
    )


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=400)
@given(text=TEXTS.map("".join), window_bytes=st.integers(1, 12))
def test_windows_do_not_matter(kind: str, text: str, window_bytes: int) -> None:
    documents = plain_split(text, kind)
    found, count, empty_count = convert_in_windows(text.encode(), kind, window_bytes, inside=False)
    assert found == joined(documents, MARK)
    assert count == found.count(MARK)
    between = documents[:-1] if kind in LITERALS else documents
    assert empty_count == (between.count("") if kind != "file" else 0)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=400)
@given(text=TEXTS.map("".join), window_bytes=st.integers(1, 12), share=st.floats(0, 1))
def test_a_document_may_have_been_begun_before(
    kind: str, text: str, window_bytes: int, share: float
) -> None:
    """The rest of a text whose first document was cut: it is ended, even if nothing of it is left."""
    text = "x" + text
    documents = plain_split(text, kind)
    cut = 1 + int(share * (len(documents[0]) - 1))
    found, count, _ = convert_in_windows(text[cut:].encode(), kind, window_bytes, inside=True)
    assert text[:cut].encode() + found == joined(documents, MARK)
    assert count == found.count(MARK)


@pytest.mark.parametrize("kind", KINDS)
@given(text=TEXTS.map("".join), rest=TEXTS.map("".join))
def test_an_unfinished_separator_is_announced(kind: str, text: str, rest: str) -> None:
    separator = choose_separator(kind, MARK)
    if separator.pattern is None:
        return
    data = text.encode()
    safe = len(data) - separator.unfinished_bytes(data)
    if separator.pattern.search(data) is None:
        found = separator.pattern.search(data + rest.encode())
        assert found is None or found.start() >= safe
