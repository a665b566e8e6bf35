"""Loss masks can be made only with tokenizers whose tokens add up to a text's bytes."""

from __future__ import annotations

import json

import numpy as np
import pytest

from lowtide.errors import SharedFaultError, UsageError
from lowtide.tokenizer.encode import EncodedBlock, Encoder, EncodeSettings
from lowtide.tokenizer.learnt_tokens import find_learnt, measure_tokens
from lowtide.tokenizer.vocabulary import Vocabulary, from_json, load_vocabulary
from tests.tokenizer_json import added_token, tokenizer_json

DELIMITER = b"<D>"
NFC = {"normalizer": {"type": "NFC"}}
PREFIX = {
    "pre_tokenizer": {
        "type": "ByteLevel",
        "add_prefix_space": True,
        "trim_offsets": True,
        "use_regex": True,
    }
}
REMOVED = {
    "pre_tokenizer": {
        "type": "Sequence",
        "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": " "}, "behavior": "Removed", "invert": False},
            {
                "type": "ByteLevel",
                "add_prefix_space": False,
                "trim_offsets": True,
                "use_regex": False,
            },
        ],
    }
}
GREEDY = {"added_tokens": [added_token("<|end|>", 50256, special=True) | {"lstrip": True}]}


def vocabulary_with(change: dict[str, object]) -> Vocabulary:
    return from_json(json.dumps(tokenizer_json() | change).encode(), name="mine")


@pytest.mark.parametrize("change", [NFC, PREFIX, REMOVED, GREEDY])
def test_a_tokenizer_that_changes_text_is_refused(change: dict[str, object]) -> None:
    settings = EncodeSettings(vocabulary=vocabulary_with(change), delimiter=DELIMITER)
    with pytest.raises(UsageError, match="mine changes text") as refused:
        measure_tokens(settings)
    assert "`--learn all`" in refused.value.remedy


def test_lengths_are_of_the_bytes_and_not_of_the_letters() -> None:
    settings = EncodeSettings(
        vocabulary=vocabulary_with({}), delimiter=DELIMITER, marks={"\ufdd10\ufdd2": 50256}
    )
    lengths = measure_tokens(settings)
    ranks = measure_tokens(EncodeSettings(vocabulary=load_vocabulary("gpt2"), delimiter=DELIMITER))
    assert np.array_equal(lengths[:50256], ranks[:50256])
    assert lengths[50256] == 7
    assert lengths[50257] == len(DELIMITER)


def test_tokens_that_do_not_add_up_are_an_error_and_no_guess() -> None:
    settings = EncodeSettings(vocabulary=load_vocabulary("gpt2"), delimiter=DELIMITER)
    encoded = Encoder(settings).encode(b"one two<D>", document_count=1)
    short = EncodedBlock(ids=encoded.ids[1:], ends=encoded.ends - 1)
    spans = np.array([[0, 3]])
    lengths = measure_tokens(settings)
    assert find_learnt(encoded, spans, lengths=lengths, text_bytes=10).tolist() == [1, 0, 0]
    with pytest.raises(SharedFaultError, match="do not add up"):
        find_learnt(short, spans, lengths=lengths, text_bytes=10)
