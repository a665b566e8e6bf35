"""The fast encoder gives the reference's ids, whatever the text, and finds the documents' ends."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lowtide.errors import DataError
from lowtide.source.separators import MARKER, overlaps_itself
from lowtide.tokenizer.encode import Encoder, EncodeSettings
from lowtide.tokenizer.reference import ReferenceEncoder, make_reference
from lowtide.tokenizer.vocabulary import Vocabulary, from_json
from tests.conftest import TOKENIZERS
from tests.tokenizer_json import added_token, tokenizer_json

MARK = b"\x00<|lowtide-document|>"
STRANGE = {
    "code": "def f(x):\n\treturn {k: v for k, v in x.items()}  # it's 100%\n" * 40,
    "crlf": "one\r\ntwo\r\n\r\n three \r\n",
    "nul": "a\x00b\x00\x00 c\x00\n",
    "scripts": "Привет, мир. 你好，世界！ こんにちは 안녕하세요 שלום עולם नमस्ते दुनिया ไทย",
    "emoji": "👩‍👩‍👧‍👦 🇩🇪 👍🏽 ❤️ 1️⃣ x👍y",
    "combining": "e\u0301a\u0308 n\u0303o \u0301 a\u0301\u0302\u0303b",
    "spaces": " " * 100_000 + "x",
    "newlines": "\n" * 100_000 + "x",
    "letters": "abcdefghij" * 10_000,
    "digits": "1234567890" * 10_000,
    "apostrophes": "I'LL it's 'S ''s don't'nt 'ſ 'K",
    "new letters": "a\u088fb \U00016ea3x 1\U000187f9 \U0001e6ec'\U00011dc9s \U00032400 plain",
    "new marks": "a\u1acfb e\u1ae5 x\U00010efay",
    "special": "before<|endoftext|>after <|endofprompt|>",
    "blanks": "\u00a0\u2003x\u3000y\u0085z\u2028w\u200b.",
}


@pytest.fixture(scope="module")
def encoders(vocabularies: dict[str, Vocabulary]) -> dict[str, tuple[Encoder, ReferenceEncoder]]:
    return {
        name: (
            Encoder(EncodeSettings(vocabulary=vocabulary, delimiter=MARK)),
            make_reference(vocabulary, "text"),
        )
        for name, vocabulary in vocabularies.items()
    }


@pytest.mark.parametrize("tokenizer", TOKENIZERS)
@pytest.mark.parametrize("kind", STRANGE)
def test_ids_equal_the_reference_on_strange_text(
    encoders: dict[str, tuple[Encoder, ReferenceEncoder]], tokenizer: str, kind: str
) -> None:
    encoder, reference = encoders[tokenizer]
    text = STRANGE[kind].encode()
    assert encoder.is_fast
    got = encoder.encode(text, document_count=0).ids
    assert np.array_equal(got, reference.encode(text))


@pytest.mark.parametrize("tokenizer", TOKENIZERS)
@settings(suppress_health_check=list(HealthCheck))
@given(
    texts=st.lists(
        st.text(
            alphabet=st.one_of(
                st.sampled_from(" \t\r\n'’sStTlL1a.!/-_é中\u0301\u00a0\u088f👍<|>"),
                st.characters(exclude_categories=["Cs"]),
            ),
            min_size=1,
            max_size=60,
        ),
        min_size=1,
        max_size=6,
    )
)
def test_a_block_of_documents_is_the_documents_one_by_one(
    encoders: dict[str, tuple[Encoder, ReferenceEncoder]], tokenizer: str, texts: list[str]
) -> None:
    encoder, reference = encoders[tokenizer]
    block = b"".join(text.encode() + MARK for text in texts)
    encoded = encoder.encode(block, document_count=len(texts))
    starts = [0, *(encoded.ends[:-1] + 1)]
    for text, start, end in zip(texts, starts, encoded.ends, strict=True):
        assert np.array_equal(encoded.ids[start:end], reference.encode(text.encode()))


@pytest.mark.parametrize("tokenizer", TOKENIZERS)
def test_special_tokens_in_text_follow_the_setting(
    vocabularies: dict[str, Vocabulary], tokenizer: str
) -> None:
    vocabulary = vocabularies[tokenizer]
    text = b"one<|endoftext|>two"
    as_token = Encoder(
        EncodeSettings(vocabulary=vocabulary, delimiter=MARK, special_in_text="token")
    ).encode(text, document_count=0)
    assert vocabulary.end_of_text in as_token.ids
    assert np.array_equal(as_token.ids, make_reference(vocabulary, "token").encode(text))
    as_text = Encoder(EncodeSettings(vocabulary=vocabulary, delimiter=MARK))
    assert vocabulary.end_of_text not in as_text.encode(text, document_count=0).ids
    strict = Encoder(EncodeSettings(vocabulary=vocabulary, delimiter=MARK, special_in_text="fail"))
    with pytest.raises(DataError, match="endoftext"):
        strict.encode(text, document_count=0)


def test_a_separator_that_is_a_special_token_ends_documents(
    vocabularies: dict[str, Vocabulary],
) -> None:
    encoder = Encoder(
        EncodeSettings(
            vocabulary=vocabularies["gpt2"], delimiter=b"<|endoftext|>", special_in_text="fail"
        )
    )
    encoded = encoder.encode(b"one<|endoftext|>two<|endoftext|>", document_count=2)
    assert encoded.ids.tolist() == [505, 50257, 11545, 50257]


def test_a_text_that_holds_the_private_mark_is_refused(vocabularies: dict[str, Vocabulary]) -> None:
    encoder = Encoder(EncodeSettings(vocabulary=vocabularies["gpt2"], delimiter=MARK))
    with pytest.raises(DataError, match="between documents"):
        encoder.encode(b"sly " + MARK + b" text" + MARK, document_count=1)


def test_renewing_an_encoder_changes_no_id(vocabularies: dict[str, Vocabulary]) -> None:
    encoder = Encoder(EncodeSettings(vocabulary=vocabularies["gpt2"], delimiter=MARK))
    text = STRANGE["scripts"].encode()
    before = encoder.encode(text, document_count=0).ids.copy()
    encoder.renew(lambda: None)
    assert np.array_equal(encoder.encode(text, document_count=0).ids, before)


def test_tiktoken_gives_up_on_a_million_spaces_and_the_reference_does_not(
    vocabularies: dict[str, Vocabulary],
) -> None:
    text = b" " * 1_000_000 + b"x"
    fast = Encoder(EncodeSettings(vocabulary=vocabularies["gpt2"], delimiter=MARK))
    reference = make_reference(vocabularies["gpt2"], "text")
    assert np.array_equal(fast.encode(text, document_count=0).ids, reference.encode(text))


def test_words_found_without_tiktoken_are_cut_by_its_older_unicode(
    vocabularies: dict[str, Vocabulary],
) -> None:
    text = b" " * 1_000_000 + "a \u088f's".encode()
    ids = make_reference(vocabularies["gpt2"], "text").encode(text)
    assert ids[-5:].tolist() == [156, 95, 237, 6, 82]


def test_a_pattern_that_asks_for_punctuation_runs_on_the_reference() -> None:
    content = json.dumps(tokenizer_json(pattern=r"\p{L}+|\p{P}+|\s+")).encode()
    vocabulary = from_json(content, name="mine")
    encoder = Encoder(EncodeSettings(vocabulary=vocabulary, delimiter=MARK))
    assert not encoder.is_fast
    got = encoder.encode(b"Hello, world" + MARK + b"again" + MARK, document_count=2)
    reference = make_reference(vocabulary, "text")
    assert np.array_equal(got.ids[: got.ends[0]], reference.encode(b"Hello, world"))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"added": [added_token("a>", 50257), added_token("<a>", 50258, special=True)]}, "x<a>y"),
        (
            {"added": [added_token("b c", 50257), added_token("a b", 50258, normalized=True)]},
            "a b c",
        ),
    ],
    ids=["overlapping", "mixed order"],
)
def test_what_gigatoken_would_read_differently_runs_on_the_reference(
    change: dict[str, object], text: str
) -> None:
    made = tokenizer_json(added=change["added"])  # type: ignore[arg-type]
    vocabulary = from_json(json.dumps(made).encode(), name="mine")
    encoder = Encoder(EncodeSettings(vocabulary=vocabulary, delimiter=MARK))
    got = encoder.encode(text.encode(), document_count=0).ids
    assert np.array_equal(got, make_reference(vocabulary, "text").encode(text.encode()))


def test_the_private_mark_cannot_arise_at_a_documents_end() -> None:
    assert not overlaps_itself(MARKER)


def test_a_separator_that_contains_a_special_token_is_not_one_in_text(
    vocabularies: dict[str, Vocabulary],
) -> None:
    settings = EncodeSettings(
        vocabulary=vocabularies["gpt2"], delimiter=b"<|endoftext|>\n", special_in_text="fail"
    )
    encoded = Encoder(settings).encode(b"one<|endoftext|>\ntwo<|endoftext|>\n", document_count=2)
    assert len(encoded.ends) == 2


def test_a_separator_that_a_tokenizer_json_knows_ends_documents() -> None:
    vocabulary = from_json(json.dumps(tokenizer_json()).encode(), name="mine")
    settings = EncodeSettings(
        vocabulary=vocabulary, delimiter=b"<|endoftext|>", special_in_text="token"
    )
    encoded = Encoder(settings).encode(b"one<|endoftext|>two<|endoftext|>", document_count=2)
    assert encoded.ids.tolist() == [505, 50257, 11545, 50257]
