"""Every written form reads back as what it was written from; damaged files are refused with a remedy."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import Tokenizer as Library

from lowtide.errors import UsageError
from lowtide.settings import PatternName
from lowtide.tokenizer.byte_pair_files import rank_file_name, read_byte_pairs, tokenizer_files
from lowtide.tokenizer.byte_pairs import BytePairs
from lowtide.tokenizer.patterns import PATTERNS
from lowtide.tokenizer.reference_encode import encode_plainly
from lowtide.tokenizer.vocabulary import load_vocabulary
from tests.learnt import END_OF_TEXT, learn, learnt
from tests.tokenizer.test_reference_encode import EVERY_PATTERN
from tests.vocabularies import rank_file

SPECIAL = (END_OF_TEXT, "<| two words |>", "<|日本|>", "plain")
Json = dict[str, object]


def write(pairs: BytePairs, folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in tokenizer_files(pairs).items():
        (folder / name).write_bytes(content)
    return folder


@EVERY_PATTERN
@pytest.mark.parametrize(
    ("opened", "removed"),
    [
        ("", []),
        ("tokenizer.json", []),
        ("", ["tokenizer.json"]),
        ("vocab.json", []),
        ("merges.txt", ["tokenizer.json"]),
        ("tokenizer.{}.tiktoken", []),
    ],
)
def test_every_written_form_reads_back_equal(
    pattern: PatternName, opened: str, removed: list[str], tmp_path: Path
) -> None:
    pairs = learnt(pattern, SPECIAL)
    folder = write(pairs, tmp_path)
    for name in removed:
        (folder / name).unlink()
    found = read_byte_pairs(folder / opened.format(pattern))
    assert found == pairs
    assert list(found.tokens) == list(pairs.tokens)
    assert tokenizer_files(found) == tokenizer_files(pairs)


def test_overlapping_special_tokens_read_back_equal(tmp_path: Path) -> None:
    pairs = learnt("cl100k", ("<|a|>", "<|a|><|b|>", "|>x"))
    assert read_byte_pairs(write(pairs, tmp_path)) == pairs


def test_in_a_folder_the_tokenizer_json_comes_first(tmp_path: Path) -> None:
    folder = write(learnt("o200k"), tmp_path)
    (folder / "tokenizer.json").write_bytes(tokenizer_files(learnt("gpt2"))["tokenizer.json"])
    assert read_byte_pairs(folder) == learnt("gpt2")


def test_a_rank_file_alone_knows_tokens_and_merges_but_no_special_tokens(tmp_path: Path) -> None:
    pairs = learnt("o200k", SPECIAL)
    folder = write(pairs, tmp_path)
    (folder / "tokenizer.json").unlink()
    found = read_byte_pairs(folder / rank_file_name("o200k"))
    assert (found.tokens, found.merges, found.pattern) == (pairs.tokens, pairs.merges, "o200k")
    assert found.special_tokens == {}


def test_a_published_encoding_is_written_as_it_was_published() -> None:
    published = rank_file("cl100k_base")
    pairs = read_byte_pairs(published)
    files = tokenizer_files(pairs)
    assert files[rank_file_name(pairs.pattern)] == published.read_bytes()
    assert pairs.special_tokens == load_vocabulary(str(published)).special_tokens


def test_files_with_a_prefix_belong_together(tmp_path: Path) -> None:
    pairs = learnt("gpt2")
    library = Library.from_str(tokenizer_files(pairs)["tokenizer.json"].decode())
    library.model.save(str(tmp_path), "mine")  # tokenizers' own writer, with a header of its own
    assert read_byte_pairs(tmp_path / "mine-vocab.json") == pairs
    assert read_byte_pairs(tmp_path / "mine-merges.txt") == pairs


def test_a_merge_that_looks_like_a_header_is_one_only_on_the_first_line(tmp_path: Path) -> None:
    shaders = ["#version"] * 9 + ["#versions"]
    pairs = learn(shaders, pattern="cl100k", merge_count=8, special_tokens=())
    assert pairs.merges[-1] == (b"#version", b"s")
    folder = write(pairs, tmp_path)
    assert read_byte_pairs(folder / "merges.txt").merges == pairs.merges


def test_merges_without_a_header_and_with_windows_line_ends_are_read(tmp_path: Path) -> None:
    pairs = learnt("gpt2")
    folder = write(pairs, tmp_path)
    merges = folder / "merges.txt"
    merges.write_bytes(merges.read_bytes().split(b"\n", 1)[1].replace(b"\n", b"\r\n"))
    assert read_byte_pairs(merges) == pairs


def test_older_files_spell_a_merge_as_one_string(tmp_path: Path) -> None:
    def in_one(file: Json) -> None:
        model = model_of(file)
        model["merges"] = [" ".join(merge) for merge in model["merges"]]  # type: ignore[attr-defined]

    pairs = learnt("gpt2")
    assert read_byte_pairs(changed_json(tmp_path, in_one)) == pairs


def test_a_repeated_merge_has_its_last_rank_as_in_tokenizers(tmp_path: Path) -> None:
    def move_first_to_the_end(file: Json) -> None:
        merges = model_of(file)["merges"]
        merges.append(merges[0])  # type: ignore[attr-defined]

    path = changed_json(tmp_path, move_first_to_the_end)
    pairs, library = read_byte_pairs(path), Library.from_file(str(path))
    assert pairs.merges == (*learnt("gpt2").merges[1:], learnt("gpt2").merges[0])
    text = "the other there that this is what they were"
    assert encode_plainly(text, pairs) == library.encode(text).ids
    assert encode_plainly(text, pairs) != encode_plainly(text, learnt("gpt2"))
    assert not load_vocabulary(str(path)).plain


def changed_json(folder: Path, change: Callable[[Json], None]) -> Path:
    file = json.loads(tokenizer_files(learnt("gpt2"))["tokenizer.json"])
    change(file)
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(file))
    return path


def model_of(file: Json) -> Json:
    model = file["model"]
    assert isinstance(model, dict)
    return model


def put(where: str, key: str, value: object) -> Callable[[Json], None]:
    def change(file: Json) -> None:
        (model_of(file) if where == "model" else file)[key] = value

    return change


def add_merge(left: str, right: str) -> Callable[[Json], None]:
    return lambda file: model_of(file)["merges"].append([left, right])  # type: ignore[attr-defined]


def rename_token(old: str, new: str) -> Callable[[Json], None]:
    def change(file: Json) -> None:
        vocab = model_of(file)["vocab"]
        assert isinstance(vocab, dict)
        vocab[new] = vocab.pop(old)

    return change


def give_id(token: str, number: int) -> Callable[[Json], None]:
    return lambda file: model_of(file)["vocab"].__setitem__(token, number)  # type: ignore[attr-defined]


DAMAGED: list[tuple[Callable[[Json], None], str]] = [
    (add_merge("Ġ", "☃"), "not a token"),
    (add_merge("x", "x"), "'xx' is not a token"),
    (put("model", "merges", ["Ġ t h"]), "reads 'Ġ t h'"),
    (put("model", "merges", ["Ġt"]), "reads 'Ġt'"),
    (put("model", "merges", 5), "not a tokenizer.json"),
    (put("model", "vocab", 5), "not a tokenizer.json"),
    (rename_token("!", "ĠĠ!!"), "0x21"),
    (give_id("!", 7), "id 7"),
    (give_id("!", -1), "from -1"),
    (give_id("!", 1 << 32), "to 4294967296"),
    (give_id(END_OF_TEXT, 999_999), "id 0"),
]


@pytest.mark.parametrize(("change", "said"), DAMAGED)
def test_a_damaged_tokenizer_json_is_refused_with_a_remedy(
    change: Callable[[Json], None], said: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=said) as error:
        read_byte_pairs(changed_json(tmp_path, change))
    assert error.value.remedy


def test_a_vocabulary_without_all_bytes_is_refused(tmp_path: Path) -> None:
    def drop(file: Json) -> None:
        del model_of(file)["vocab"]["Ā"]  # type: ignore[attr-defined]

    with pytest.raises(UsageError, match="no token for 1 of the 256 bytes \\(0x00") as error:
        read_byte_pairs(changed_json(tmp_path, drop))
    assert "initial_alphabet" in error.value.remedy


ADDED = {
    "id": learnt("gpt2").tokens[b"x"],
    "content": "x",
    "lstrip": False,
    "rstrip": False,
    "single_word": False,
}
OTHER_KINDS: list[tuple[Callable[[Json], None], str]] = [
    (put("model", "type", "WordPiece"), "WordPiece"),
    (put("model", "ignore_merges", True), "as a whole"),
    (put("file", "normalizer", {"type": "NFC"}), "normalizer"),
    (put("file", "post_processor", {"type": "TemplateProcessing"}), "post-processor"),
    (put("file", "added_tokens", [ADDED | {"special": False}]), "not special"),
    (put("file", "added_tokens", [ADDED | {"special": True, "lstrip": True}]), "neighbours"),
    (put("file", "added_tokens", [ADDED | {"special": True}]), "ordinary one as well"),
    (put("file", "pre_tokenizer", {"type": "ByteLevel", "add_prefix_space": True}), "pattern"),
    (give_id("Ġneverlearnt", 5000), "no merge"),
]


@pytest.mark.parametrize(("change", "said"), OTHER_KINDS)
def test_what_byte_pairs_cannot_hold_is_named(
    change: Callable[[Json], None], said: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=said) as error:
        read_byte_pairs(changed_json(tmp_path, change))
    assert "not a plain byte-level BPE" in error.value.problem


def test_the_possessive_spelling_is_not_a_plain_pattern(tmp_path: Path) -> None:
    def spell(file: Json) -> None:
        split = {"type": "Split", "pattern": {"Regex": PATTERNS["cl100k"]}, "behavior": "Isolated"}
        byte_level = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}
        file["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [split, byte_level]}

    with pytest.raises(UsageError, match="pattern"):
        read_byte_pairs(changed_json(tmp_path, spell))


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("vocab.json", b"[1, 2]", "not a vocab.json"),
        ("vocab.json", b"{", "not a vocab.json"),
        ("vocab.json", b'{"a": "b"}', "not a vocab.json"),
        ("vocab.json", b'{"a": 0}', "not a token"),
        ("vocab.json", b'{"\xff": 0}', "not a vocab.json"),
        ("merges.txt", b"\xff\xfe", "UTF-8|utf-8"),
        ("merges.txt", b"#version: 0.3\n", "begins with '#version: 0.3'"),
        ("merges.txt", b"#version: 0.2 - pattern: gpt9\n", "gpt9"),
        ("merges.txt", b"#version: 0.2\na b c\n", "reads 'a b c'"),
        ("merges.txt", b"#version: 0.2\na\n", "reads 'a'"),
        ("merges.txt", "#version: 0.2\na ☃\n".encode(), "not a token"),
    ],
)
def test_damaged_pair_files_are_refused_with_a_remedy(
    name: str, content: bytes, said: str, tmp_path: Path
) -> None:
    folder = write(learnt("gpt2"), tmp_path)
    (folder / "tokenizer.json").unlink()
    (folder / name).write_bytes(content)
    with pytest.raises(UsageError, match=said) as error:
        read_byte_pairs(folder)
    assert error.value.remedy


@pytest.mark.parametrize(
    ("missing", "opened"), [("merges.txt", "vocab.json"), ("vocab.json", "merges.txt")]
)
def test_one_file_of_a_pair_asks_for_the_other(missing: str, opened: str, tmp_path: Path) -> None:
    folder = write(learnt("gpt2"), tmp_path)
    content = (folder / missing).read_bytes()
    (folder / missing).unlink()
    with pytest.raises(UsageError, match=missing) as error:
        read_byte_pairs(folder / opened)
    assert str(folder) in error.value.remedy
    (folder / missing).write_bytes(content)
    assert read_byte_pairs(folder / opened) == learnt("gpt2")


def test_a_file_of_a_gigabyte_is_not_read(tmp_path: Path) -> None:
    for name in ("tokenizer.json", "huge.gpt2.tiktoken"):
        with (tmp_path / name).open("wb") as file:
            file.truncate(1 << 30)
        with pytest.raises(UsageError, match=r"1\.0 GiB"):
            read_byte_pairs(tmp_path / name)


@pytest.mark.parametrize("tokens", [[b"xyz"], [b"a" * (1 << n) for n in range(1, 14)]])
def test_ranks_from_which_merges_cannot_be_recovered_are_refused(
    tokens: list[bytes], tmp_path: Path
) -> None:
    everything = [*(bytes([byte]) for byte in range(256)), *tokens]
    path = tmp_path / "odd.gpt2.tiktoken"
    ranked = (base64.b64encode(token) + b" %d\n" % rank for rank, token in enumerate(everything))
    path.write_bytes(b"".join(ranked))
    with pytest.raises(UsageError, match=f"{len(tokens[-1])} bytes") as error:
        read_byte_pairs(path)
    assert "tokenizer.json" in error.value.remedy


def test_a_name_that_does_not_exist_lists_the_choices(tmp_path: Path) -> None:
    for source in ("gpt5", tmp_path, tmp_path / "vocab.json"):
        with pytest.raises(UsageError) as error:
            read_byte_pairs(source)
        assert "tokenizer.json" in error.value.remedy


BYTE_LEVEL: Json = {"type": "ByteLevel"}
NORMALIZED_AND_LOSING: list[Json] = [
    {"type": "Replace", "pattern": {"String": "BL"}, "content": "ByteLevel"},
    {
        "type": "Sequence",
        "normalizers": [
            BYTE_LEVEL,
            {"type": "Replace", "pattern": {"String": "Ġ"}, "content": "▁"},
        ],
    },
    {"type": "Sequence", "normalizers": [BYTE_LEVEL, {"type": "Prepend", "prepend": "▁"}]},
]


@pytest.mark.parametrize("normalizer", NORMALIZED_AND_LOSING)
def test_a_normalizer_whose_letters_may_have_no_token_is_refused(
    normalizer: Json, tmp_path: Path
) -> None:
    def normalize(file: Json) -> None:
        file["pre_tokenizer"] = None
        file["normalizer"] = normalizer

    with pytest.raises(UsageError, match="text would be lost"):
        load_vocabulary(changed_json(tmp_path, normalize))


def test_metaspace_behind_bytes_is_refused_and_bytes_behind_metaspace_are_not(
    tmp_path: Path,
) -> None:
    metaspace: Json = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always"}

    def split_by(*steps: Json) -> Callable[[Json], None]:
        return put("file", "pre_tokenizer", {"type": "Sequence", "pretokenizers": [*steps]})

    spelled: Json = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}
    with pytest.raises(UsageError, match="text would be lost"):
        load_vocabulary(changed_json(tmp_path, split_by(spelled, metaspace)))
    load_vocabulary(changed_json(tmp_path, split_by(metaspace, spelled)))


def test_a_normalizer_that_ends_in_bytes_loses_nothing(tmp_path: Path) -> None:
    def normalize(file: Json) -> None:
        file["pre_tokenizer"] = None
        file["normalizer"] = {"type": "Sequence", "normalizers": [{"type": "NFC"}, BYTE_LEVEL]}

    assert load_vocabulary(changed_json(tmp_path, normalize))
