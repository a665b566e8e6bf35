"""`lowtide.Tokenizer` gives the reference's ids for any text, however it arrives, and decodes them again."""

from __future__ import annotations

import copy
import json
import pickle
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import lowtide
from lowtide.errors import DataError, StorageError, UsageError
from lowtide.settings import PatternName
from lowtide.tokenizer import text_pieces
from lowtide.tokenizer import tokenizer as module
from lowtide.tokenizer.byte_pair_files import rank_file_name, tokenizer_files
from lowtide.tokenizer.reference import Ids
from lowtide.tokenizer.reference_encode import (
    encode_plainly,
    encode_with_special_tokens,
)
from lowtide.tokenizer.split_words import split_words_reference
from lowtide.tokenizer.tokenizer import Tokenizer
from tests.corpora import make_documents
from tests.learnt import END_OF_TEXT, learnt
from tests.tokenizer.test_encode import STRANGE
from tests.tokenizer.test_reference_encode import ANY_TEXT, EVERY_PATTERN
from tests.vocabularies import rank_file

SPECIAL = (END_OF_TEXT, "two words", "<|>")
PATIENT = settings(suppress_health_check=list(HealthCheck))


@cache
def made(pattern: PatternName) -> Tokenizer:
    return Tokenizer.from_byte_pairs(learnt(pattern, SPECIAL))


@cache
def gpt2() -> Tokenizer:
    return Tokenizer.load("gpt2")


@EVERY_PATTERN
@PATIENT
@given(text=ANY_TEXT)
def test_ids_are_the_references_and_decode_to_the_text(pattern: PatternName, text: str) -> None:
    tokenizer, pairs = made(pattern), learnt(pattern, SPECIAL)
    plain = tokenizer.encode(text)
    assert plain == encode_plainly(text, pairs)
    special = tokenizer.encode(text, special_in_text="token")
    assert special == encode_with_special_tokens(text, pairs)
    assert tokenizer.decode(plain) == tokenizer.decode(special) == text
    assert tokenizer.decode_bytes(plain) == text.encode()


@EVERY_PATTERN
@pytest.mark.parametrize("kind", STRANGE)
def test_strange_text_comes_back(pattern: PatternName, kind: str) -> None:
    tokenizer = made(pattern)
    assert tokenizer.decode(tokenizer.encode(STRANGE[kind])) == STRANGE[kind]


@EVERY_PATTERN
def test_documents_have_the_references_ids(pattern: PatternName) -> None:
    for text in make_documents(11, count=12):
        assert made(pattern).encode(text) == encode_plainly(text, learnt(pattern, SPECIAL))


def test_published_encodings_have_their_published_ids() -> None:
    assert gpt2().encode("Hello there") == [15496, 612]
    cl100k = Tokenizer.load(rank_file("cl100k_base"))
    assert cl100k.encode("Hello there\n  ") == [9906, 1070, 198, 256]
    assert (cl100k.size, cl100k.end_of_text) == (100277, 100257)


@EVERY_PATTERN
@PATIENT
@given(
    parts=st.lists(ANY_TEXT | st.sampled_from([*SPECIAL, "two", " words"]), max_size=12),
    piece_characters=st.integers(1, 40),
)
def test_a_text_that_comes_in_parts_has_the_ids_of_the_whole(
    pattern: PatternName,
    parts: list[str],
    piece_characters: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(text_pieces, "PIECE_CHARACTERS", piece_characters)
    pairs, whole = learnt(pattern, SPECIAL), "".join(parts)
    for mode, encode in (("text", encode_plainly), ("token", encode_with_special_tokens)):
        ids = list(made(pattern).encode_iterable(parts, special_in_text=mode))  # type: ignore[arg-type]
        assert ids == encode(whole, pairs)
        assert made(pattern).encode(whole, special_in_text=mode) == ids  # type: ignore[arg-type]


@EVERY_PATTERN
@PATIENT
@given(text=ANY_TEXT, rest=ANY_TEXT)
@example(text="a!\n/b c!\n\nd\n\n  \n", rest="/")
@example(text="a  b\n c\u00a0 d", rest="")
def test_every_cut_parts_words_from_words_whatever_follows(
    pattern: PatternName, text: str, rest: str
) -> None:
    whole = list(split_words_reference(text + rest, pattern))
    while (place := text_pieces.last_cut(text, pattern, ())) > 0:
        left, right = text[:place], text[place:]
        assert [
            *split_words_reference(left, pattern),
            *split_words_reference(right + rest, pattern),
        ] == whole
        text, rest = left, right + rest


@EVERY_PATTERN
def test_lines_of_any_script_can_be_cut(pattern: PatternName) -> None:
    lines = ["你好，世界！\n", "Привет, мир.\n", "done;\n", "a b"]
    for line in lines:
        assert text_pieces.last_cut(line * 2, pattern, ()) > 0


def test_a_stream_is_read_no_further_than_it_is_encoded() -> None:
    read = 0

    def lines() -> Iterator[str]:
        nonlocal read
        for number in range(100_000):
            read += 1
            yield f"line {number} of a long text\n"

    ids = gpt2().encode_iterable(lines())
    assert next(ids) == gpt2().encode("line")[0]
    assert read < 4_000
    assert sum(1 for _ in ids) > 500_000
    assert read == 100_000


@PATIENT
@given(texts=st.lists(ANY_TEXT | st.sampled_from([module._MARK, *SPECIAL]), max_size=8))
def test_a_batch_is_its_texts_one_by_one(texts: list[str]) -> None:
    tokenizer = made("cl100k")
    assert tokenizer.encode_batch(texts) == [tokenizer.encode(text) for text in texts]
    found = tokenizer.encode_batch(texts, special_in_text="token")
    assert found == [tokenizer.encode(text, special_in_text="token") for text in texts]


def test_batches_of_any_size_keep_the_order(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = make_documents(4, count=40)
    expected = [gpt2().encode(text) for text in texts]
    for characters in (1, 3_000, 1 << 20):
        monkeypatch.setattr(module, "_BATCH_CHARACTERS", characters)
        assert gpt2().encode_batch(iter(texts)) == expected


def test_the_private_mark_is_text_like_any_other() -> None:
    for text in (module._MARK, f"a{module._MARK}b", module._MARK * 2, module._MARK[:-1]):
        assert gpt2().decode(gpt2().encode(text)) == text


def test_a_special_token_that_overlaps_the_private_mark_spoils_no_batch() -> None:
    tokenizer = Tokenizer.from_byte_pairs(learnt("gpt2", ("a\x00", "lowtide")))
    texts = ["a", "aa", "lowtide", "a\x00"]
    for mode in ("text", "token"):
        expected = [tokenizer.encode(text, special_in_text=mode) for text in texts]  # type: ignore[arg-type]
        assert tokenizer.encode_batch(texts, special_in_text=mode) == expected  # type: ignore[arg-type]


def test_special_tokens_in_a_text_follow_the_caller() -> None:
    text = f"one{END_OF_TEXT}two"
    assert gpt2().encode(text, special_in_text="token") == [505, 50256, 11545]
    assert 50256 not in gpt2().encode(text)
    for call in (gpt2().encode, lambda text, **how: gpt2().encode_batch([text, "x"], **how)):
        with pytest.raises(DataError, match="endoftext") as error:
            call(text, special_in_text="fail")
        assert 'special_in_text="text"' in error.value.remedy
    assert gpt2().encode("no such name", special_in_text="fail") == gpt2().encode("no such name")


def test_bytes_arrays_and_lists_are_taken_alike() -> None:
    ids = gpt2().encode("Hello there")
    assert gpt2().encode(b"Hello there") == ids
    array = gpt2().encode_to_numpy("Hello there")
    assert (array.dtype, array.tolist()) == (np.uint32, ids)
    kinds = (
        ids,
        tuple(ids),
        array,
        array.astype(np.uint16),
        np.array(ids, dtype=np.int64),
        iter(ids),
    )
    assert {gpt2().decode(kind) for kind in kinds} == {"Hello there"}
    assert gpt2().encode("") == []
    assert gpt2().encode_to_numpy("").dtype == np.uint32
    assert gpt2().decode([]) == ""


def test_part_of_a_character_is_replaced_unless_errors_says_otherwise() -> None:
    first, *_ = gpt2().encode("\u088f")
    assert gpt2().decode([first]) == "\ufffd"
    with pytest.raises(UnicodeDecodeError):
        gpt2().decode([first], errors="strict")


def test_ids_that_do_not_exist_are_refused() -> None:
    for ids in ([50257], [-1], np.array([70000])):
        with pytest.raises(UsageError, match="is not an id of gpt2, whose ids end at 50256"):
            gpt2().decode(ids)


def test_text_that_utf8_cannot_encode_is_refused_with_a_remedy() -> None:
    for text in ("\ud800", b"\xff"):
        with pytest.raises(DataError) as error:
            gpt2().encode(text)
        assert 'errors="replace"' in error.value.remedy
    assert gpt2().encode(b"\xff".decode(errors="replace"))
    assert gpt2().encode("\ud800".encode(errors="replace"))


@EVERY_PATTERN
def test_save_and_load_and_save_again_gives_the_same_bytes(
    pattern: PatternName, tmp_path: Path
) -> None:
    made(pattern).save(tmp_path / "first")
    loaded = Tokenizer.load(tmp_path / "first")
    loaded.save(tmp_path / "deep" / "second")
    first, second = (
        {path.name: path.read_bytes() for path in folder.iterdir()}
        for folder in (tmp_path / "first", tmp_path / "deep" / "second")
    )
    assert first == second == tokenizer_files(learnt(pattern, SPECIAL))
    assert loaded.byte_pairs == learnt(pattern, SPECIAL)


@EVERY_PATTERN
def test_every_file_of_a_folder_opens_the_same_tokenizer(
    pattern: PatternName, tmp_path: Path
) -> None:
    made(pattern).save(tmp_path)
    text = f"It's 2026,\n two words {END_OF_TEXT}!\n  "
    for name in ("", "tokenizer.json", "vocab.json", "merges.txt", rank_file_name(pattern)):
        opened = Tokenizer.load(str(tmp_path / name))
        assert opened.special_tokens == made(pattern).special_tokens
        for mode in ("text", "token"):
            expected = made(pattern).encode(text, special_in_text=mode)  # type: ignore[arg-type]
            assert opened.encode(text, special_in_text=mode) == expected  # type: ignore[arg-type]


def test_a_rank_file_of_another_tokenizer_does_not_stay_behind(tmp_path: Path) -> None:
    made("gpt2").save(tmp_path)
    made("o200k").save(tmp_path)
    assert [path.name for path in tmp_path.glob("*.tiktoken")] == [rank_file_name("o200k")]


def test_a_folder_that_cannot_be_made_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("here first")
    with pytest.raises(StorageError):
        made("gpt2").save(tmp_path / "file" / "folder")


def test_vocabulary_and_merges_are_plain_values() -> None:
    tokenizer = made("o200k")
    vocabulary = tokenizer.vocabulary
    assert list(vocabulary) == list(range(tokenizer.size))
    assert [vocabulary[number] for number in range(3)] == [name.encode() for name in SPECIAL]
    assert vocabulary[3 + 256] == b"".join(tokenizer.merges[0])
    assert (len(tokenizer), tokenizer.end_of_text, tokenizer.pattern) == (
        tokenizer.size,
        0,
        "o200k",
    )
    assert gpt2().merges[:2] == ((b" ", b"t"), (b" ", b"a"))
    assert gpt2().vocabulary[50256] == END_OF_TEXT.encode()


def test_what_is_handed_out_changes_nothing_inside() -> None:
    gpt2().special_tokens["new"] = 1
    gpt2().vocabulary.clear()
    assert gpt2().special_tokens == {END_OF_TEXT: 50256}
    assert gpt2().decode([15496]) == "Hello"


def test_a_tokenizer_says_what_it_is() -> None:
    assert repr(gpt2()) == (
        "Tokenizer('gpt2', size=50257, pattern='gpt2', special_tokens={'<|endoftext|>': 50256})"
    )
    many = Tokenizer.from_byte_pairs(learnt("gpt2", tuple(f"<{n}>" for n in range(9))))
    assert "and 6 more" in repr(many)


def test_copies_and_pickles_give_the_same_ids() -> None:
    text = "It's a copy"
    for other in (copy.copy(gpt2()), pickle.loads(pickle.dumps(gpt2()))):  # noqa: S301 - our own bytes
        assert other.encode(text) == gpt2().encode(text)


def test_threads_that_share_a_tokenizer_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = make_documents(6, count=60)
    expected = [gpt2().encode(text) for text in texts]
    tokenizer = copy.copy(gpt2())
    engine = tokenizer._engine("text")
    encode, inside, together = engine.encode, 0, 0

    def watched(text: bytes) -> Ids:
        nonlocal inside, together
        inside += 1
        together = max(together, inside)
        time.sleep(0.001)  # long enough for another thread to come in, if it could
        ids = encode(text)
        inside -= 1
        return ids

    monkeypatch.setattr(engine, "encode", watched)
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(tokenizer.encode, texts)) == expected
    assert together == 1


def test_an_encoder_that_has_seen_much_text_is_renewed(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = copy.copy(gpt2())
    tokenizer.encode("made")
    engine = tokenizer._engine("text")
    before = engine._encoder._fast
    monkeypatch.setattr(module, "_GROWTH_BYTES", -(1 << 40))
    assert tokenizer.encode("Hello there") == [15496, 612]
    assert engine._encoder._fast is before
    tokenizer.encode(" word" * (module._RENEW_AFTER_BYTES // 5))
    assert tokenizer.encode("Hello there") == [15496, 612]
    assert engine._encoder._fast is not before


def library_file(folder: Path) -> Path:
    """A tokenizer of another kind: whole words, lower case."""
    model = tokenizers.models.WordLevel({"hello": 0, "world": 1, "[UNK]": 2}, unk_token="[UNK]")
    library = tokenizers.Tokenizer(model)
    library.normalizer = tokenizers.normalizers.Lowercase()
    library.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    library.add_special_tokens(["</s>"])
    path = folder / "tokenizer.json"
    library.save(str(path))
    return path


def test_a_tokenizer_of_another_kind_runs_on_its_library(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(library_file(tmp_path))
    assert tokenizer.encode("Hello World</s>", special_in_text="token") == [0, 1, 3]
    assert list(tokenizer.encode_iterable(["Hel", "lo World"])) == [0, 1]
    assert tokenizer.encode_batch(["hello", "world hello"]) == [[0], [1, 0]]
    assert tokenizer.decode([0, 1]) == "hello world"
    assert (tokenizer.size, tokenizer.end_of_text, tokenizer.pattern) == (4, 3, None)
    with pytest.raises(UsageError, match="is not an id"):
        tokenizer.decode([4])
    for ask in (
        lambda: tokenizer.merges,
        lambda: tokenizer.vocabulary,
        lambda: tokenizer.save(tmp_path),
    ):
        with pytest.raises(UsageError, match="its model is WordLevel"):
            ask()


@pytest.mark.parametrize(
    "content", ["{", '{"model": {"type": "BPE", "vocab": {}, "merges": ["a b"]}}', "[]"]
)
def test_damage_is_found_when_a_file_is_opened(content: str, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(content)
    with pytest.raises((UsageError, DataError)):
        Tokenizer.load(path)


def test_a_merge_of_unknown_tokens_is_found_when_a_file_is_opened(tmp_path: Path) -> None:
    file = json.loads(tokenizer_files(learnt("gpt2"))["tokenizer.json"])
    file["model"]["merges"].append(["x", "x"])
    (tmp_path / "tokenizer.json").write_text(json.dumps(file))
    with pytest.raises(UsageError, match="'xx' is not a token"):
        Tokenizer.load(tmp_path)


def test_it_is_a_public_name() -> None:
    assert lowtide.Tokenizer is Tokenizer
    assert "Tokenizer" in dir(lowtide)


def test_a_mistyped_treatment_of_special_tokens_is_refused() -> None:
    tokenizer = Tokenizer.load("gpt2")
    for encode in (
        tokenizer.encode,
        lambda text, **how: tokenizer.encode_batch([text, text], **how),
    ):
        with pytest.raises(UsageError, match="tokens"):
            encode("a<|endoftext|>", special_in_text="tokens")  # type: ignore[arg-type]
