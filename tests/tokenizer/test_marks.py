"""Marks, the private spellings of special tokens: found in any text, and exact between them."""

from __future__ import annotations

import json

import numpy as np
import pytest
import tiktoken
import tokenizers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lowtide.tokenizer.encode import Encoder, EncodeSettings, find_disagreement, sample_pieces
from lowtide.tokenizer.learnt_tokens import find_learnt, measure_tokens
from lowtide.tokenizer.patterns import PATTERNS
from lowtide.tokenizer.reference import make_reference
from lowtide.tokenizer.vocabulary import Vocabulary, from_json, parse_ranks
from tests.tokenizer_json import added_token, tokenizer_json

DELIMITER = b"\x00<|lowtide-document|>"
NAMES = ("gpt2", "cl100k_base", "o200k_base", "chat.json")
CHAT = [
    added_token("<|im_start|>", 50257, special=True),
    added_token("<|im_end|>", 50258, special=True),
]
TEXTS = st.text(
    alphabet=st.one_of(
        st.sampled_from(" \t\r\n'’sSlL1a.!/é中\u0301\u00a0\u088f👍<|>"),
        st.characters(exclude_categories=["Cs", "Cn"]),
    ),
    max_size=30,
)
SPECIAL_TEXT = st.sampled_from(["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|endofprompt|>"])
PARTS = st.lists(st.one_of(TEXTS, SPECIAL_TEXT, st.integers(0, 3)), min_size=1, max_size=8)
"""Text, the name of a special token as text, or the number of a mark."""


def marks_of(vocabulary: Vocabulary) -> dict[str, int]:
    ordered = sorted(vocabulary.special_tokens.items(), key=lambda item: (item[1], item[0]))
    return {f"\ufdd1{number}\ufdd2": token for number, (_, token) in enumerate(ordered)}


@pytest.fixture(scope="module")
def known(vocabularies: dict[str, Vocabulary]) -> dict[str, Vocabulary]:
    content = json.dumps(tokenizer_json(pattern=PATTERNS["cl100k"], added=CHAT)).encode()
    return vocabularies | {"chat.json": from_json(content, name="chat")}


class Marked:
    """A tokenizer with its marks, the reference with and without them, and its tokens' lengths."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.settings = EncodeSettings(
            vocabulary=vocabulary, delimiter=DELIMITER, marks=marks_of(vocabulary)
        )
        self.encoder = Encoder(self.settings)
        self.plain = make_reference(vocabulary, "text")
        self.reference = make_reference(vocabulary, "text", self.settings.marks)
        self.lengths = measure_tokens(self.settings)


@pytest.fixture(scope="module")
def tokenizers_with_marks(known: dict[str, Vocabulary]) -> dict[str, Marked]:
    return {name: Marked(known[name]) for name in NAMES}


def spelled(parts: list[str | int], marks: dict[str, int]) -> str:
    names = list(marks)
    return "".join(part if isinstance(part, str) else names[part % len(names)] for part in parts)


def between_marks(parts: list[str | int], marked: Marked) -> list[int]:
    """What the reference library says of the stretches between special tokens, and the special ids."""
    special = sorted(marked.settings.vocabulary.special_tokens.values())
    ids: list[int] = []
    stretch = ""
    for part in [*parts, 0]:
        if isinstance(part, str):
            stretch += part
            continue
        ids += marked.plain.encode(stretch.encode()).tolist() if stretch else []
        ids.append(special[part % len(special)])
        stretch = ""
    return ids[:-1]


@pytest.mark.parametrize("name", NAMES)
@settings(suppress_health_check=list(HealthCheck))
@given(parts=PARTS)
def test_a_mark_becomes_its_special_token_and_names_stay_text(
    tokenizers_with_marks: dict[str, Marked], name: str, parts: list[str | int]
) -> None:
    marked = tokenizers_with_marks[name]
    assert marked.encoder.is_fast
    text = spelled(parts, dict(marked.settings.marks)).encode()
    expected = between_marks(parts, marked)
    got = marked.encoder.encode(text + DELIMITER, document_count=1)
    assert got.ids.tolist() == [*expected, marked.settings.delimiter_id]
    assert marked.reference.encode(text).tolist() == expected


@pytest.mark.parametrize("name", NAMES)
def test_the_check_of_a_run_knows_marks(
    tokenizers_with_marks: dict[str, Marked], name: str
) -> None:
    marked = tokenizers_with_marks[name]
    text = spelled(["one", 0, " two <|endoftext|>", 1, 0], dict(marked.settings.marks)).encode()
    pieces = sample_pieces(marked.encoder, marked.settings, text + DELIMITER)
    assert find_disagreement(marked.encoder, marked.settings, pieces) is None


@pytest.mark.parametrize("name", NAMES)
@settings(suppress_health_check=list(HealthCheck))
@given(documents=st.lists(PARTS, min_size=1, max_size=4), cuts=st.lists(st.integers(0, 400)))
def test_a_token_is_learnt_if_it_shares_a_byte_with_what_is(
    tokenizers_with_marks: dict[str, Marked],
    name: str,
    documents: list[list[str | int]],
    cuts: list[int],
) -> None:
    marked = tokenizers_with_marks[name]
    texts = [spelled(parts, dict(marked.settings.marks)).encode() for parts in documents]
    block = b"".join(text + DELIMITER for text in texts)
    borders = sorted({cut for cut in cuts if cut <= len(block)})
    spans = np.array(list(zip(borders[::2], borders[1::2], strict=False)), dtype=np.int64)
    encoded = marked.encoder.encode(block, document_count=len(texts))
    learnt = find_learnt(
        encoded, spans.reshape(-1, 2), lengths=marked.lengths, text_bytes=len(block)
    )
    wanted = np.zeros(len(block) + 1, dtype=bool)
    for start, stop in spans:
        wanted[start:stop] = True
    at = 0
    for number, flag in zip(encoded.ids.tolist(), learnt.tolist(), strict=True):
        length = int(marked.lengths[number])
        ends_document = number == marked.settings.delimiter_id
        assert flag == (not ends_document and bool(wanted[at : at + length].any()))
        at += length
    assert at == len(block)


def test_marks_give_what_tiktoken_gives_with_the_names_allowed(
    known: dict[str, Vocabulary],
) -> None:
    ranks = parse_ranks(known["gpt2"].content, name="gpt2")
    plain = tiktoken.Encoding(
        "chat",
        pat_str=PATTERNS["gpt2"],
        mergeable_ranks=ranks,
        special_tokens={"<|endoftext|>": 50256},
    )
    marked = EncodeSettings(
        vocabulary=known["gpt2"], delimiter=DELIMITER, marks=marks_of(known["gpt2"])
    )
    (mark,) = marked.marks
    text = "User: hi\n\nAssistant: yo<|endoftext|> again \u088f<|endoftext|>"
    expected = plain.encode(text, allowed_special="all")
    got = Encoder(marked).encode(text.replace("<|endoftext|>", mark).encode(), document_count=0)
    assert got.ids.tolist() == expected


def test_a_mark_eats_its_neighbours_where_its_token_does() -> None:
    greedy = added_token("<|end|>", 50257, special=True) | {"rstrip": True}
    content = json.dumps(tokenizer_json(added=[greedy])).encode()
    vocabulary = from_json(content, name="greedy")
    marked = EncodeSettings(
        vocabulary=vocabulary, delimiter=DELIMITER, marks={"\ufdd11\ufdd2": 50257}
    )
    encoder = Encoder(marked)
    assert not encoder.is_fast
    got = encoder.encode("one\ufdd11\ufdd2 \n two".encode(), document_count=0)
    expected = tokenizers.Tokenizer.from_str(content.decode()).encode("one<|end|> \n two")
    assert got.ids.tolist() == expected.ids
