"""Every feature of a tokenizer.json has the effect that it has in tokenizers, or is refused."""

from __future__ import annotations

import json
import random
import re
import signal
import sys
import threading
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pytest
import tokenizers

import lowtide
from bench.tokenizer_variants import (
    KINDS,
    PRE_TOKENIZERS,
    TOKENS,
    Campaign,
    Variant,
    choose_variants,
    make_text,
)
from lowtide.errors import DataError, SharedFaultError, UsageError
from lowtide.events import Note, ignore
from lowtide.memory.proc_files import kib_fields
from lowtide.settings import TokenizeSettings
from lowtide.shards.manifest import read_manifest, write_manifest
from lowtide.shards.read import open_dataset
from lowtide.source.stream import Cursor, read_blocks
from lowtide.stages.examine import verify
from lowtide.stages.prepare import Prepared, prepare
from lowtide.stages.prove_encoder import prove_encoder
from lowtide.tokenizer.encode import (
    SAMPLE_BYTES,
    Encoder,
    EncodeSettings,
    find_disagreement,
    sample_pieces,
)
from lowtide.tokenizer.patterns import _SPELLINGS, CL100K
from lowtide.tokenizer.reference import make_reference
from lowtide.tokenizer.reference_apart import ReferenceApart, ReferenceMemoryError
from lowtide.tokenizer.vocabulary import Vocabulary, from_json, load_vocabulary
from lowtide.units import MIB, parse_bytes
from tests.tokenizer_json import added_token, byte_alphabet

MARK = b"\x00<|lowtide-document|>"
UNDERSTOOD = {"bytes", "cl100k", "qwen", "cl100k, inverted removed"}
WITHOUT_BYTES = {"cl100k, no bytes", "none"}
VARIANTS = choose_variants(random.Random(5), 72)
CONTIGUOUS = Variant(pre_tokenizer="cl100k, contiguous")
"""gigatoken takes it for cl100k."""


def vocabulary_of(variant: Variant) -> Vocabulary:
    return from_json(variant.content(), name="mine")


def write(variant: Variant, folder: Path) -> str:
    (folder / "tokenizer.json").write_bytes(variant.content())
    return str(folder / "tokenizer.json")


def taken_for_plain(vocabulary: Vocabulary) -> Vocabulary:
    """What the list of understood forms prevents: gigatoken gets what it reads wrongly."""
    return replace(vocabulary, why_reference=None, pattern="cl100k")


@pytest.mark.parametrize("name", [name for name in PRE_TOKENIZERS if name not in WITHOUT_BYTES])
def test_only_understood_forms_are_left_to_the_fast_encoder(name: str) -> None:
    vocabulary = vocabulary_of(Variant(pre_tokenizer=name))
    encoder = Encoder(EncodeSettings(vocabulary=vocabulary, delimiter=MARK))
    assert encoder.is_fast == (name in UNDERSTOOD)


@pytest.mark.parametrize("variant", VARIANTS, ids=[variant.name for variant in VARIANTS])
def test_ids_are_those_of_tokenizers_or_the_file_is_refused(variant: Variant) -> None:
    try:
        encoder = Encoder(EncodeSettings(vocabulary=vocabulary_of(variant), delimiter=MARK))
    except UsageError:
        return
    reference = tokenizers.Tokenizer.from_str(variant.content().decode())
    reference.encode_special_tokens = True
    for kind in KINDS:
        text = make_text(random.Random(7), kind, 3000)
        got = encoder.encode(text.encode(), document_count=0).ids
        assert got.tolist() == reference.encode(text, add_special_tokens=False).ids, kind


@pytest.mark.parametrize(
    "variant",
    [
        Variant(pre_tokenizer="an unknown key"),
        Variant(added="an unknown key"),
        Variant(model="an unknown key"),
    ],
    ids=lambda variant: variant.name,
)
def test_a_file_with_an_unknown_key_goes_to_the_reference(variant: Variant) -> None:
    assert not vocabulary_of(variant).plain


def test_every_way_to_the_reference_has_a_reason_of_its_own() -> None:
    variants = (
        Variant(pre_tokenizer="digits"),
        Variant(normalizer="NFC"),
        Variant(added="eats blanks"),
        Variant(added="overlapping"),
        Variant(model="a merge twice"),
        Variant(model="a byte missing, unk"),
    )
    reasons = [vocabulary_of(variant).why_reference for variant in variants]
    assert all(reasons)
    assert len(set(reasons)) == len(variants)
    assert vocabulary_of(Variant()).why_reference is None


def test_the_warning_of_the_reference_gives_the_reason_and_no_figure(tmp_path: Path) -> None:
    variant, source, folder = Variant(normalizer="NFC"), tmp_path / "input.txt", tmp_path / "own"
    source.write_text("Dateigröße")
    folder.mkdir()
    settings = TokenizeSettings(tokenizer=write(variant, folder), eot="none")
    told: list[object] = []
    lowtide.tokenize(source, tmp_path / "out", settings, listen=told.append)
    (warning,) = [note.text for note in told if isinstance(note, Note) and note.level == "warning"]
    reason = vocabulary_of(variant).why_reference
    assert reason
    assert reason in warning
    assert "slower" in warning
    assert not re.search(r"\d", warning.replace(reason, ""))


def test_an_added_token_has_the_id_that_tokenizers_gives_it() -> None:
    with pytest.raises(UsageError):
        vocabulary_of(Variant(added="a gap in ids"))
    made = json.loads(Variant().content())
    made["added_tokens"] = [added_token("the", TOKENS)]  # which the vocabulary has under another id
    with pytest.raises(UsageError):
        from_json(json.dumps(made).encode(), name="mine")


@pytest.mark.parametrize("number", [256, 375])
def test_gaps_in_the_vocabulary_do_not_move_added_tokens(number: int) -> None:
    """tokenizers counts on from the vocabulary's size, whatever the largest id is."""
    made = json.loads(Variant().content())
    letters = list(byte_alphabet().values())
    made["model"] |= {"vocab": {one: 2 * at for at, one in enumerate(letters)}, "merges": []}
    known = added_token(letters[187], 374)
    made["added_tokens"] = [known, added_token("<tool>", number)]
    content = json.dumps(made)
    if tokenizers.Tokenizer.from_str(content).token_to_id("<tool>") == number:
        from_json(content.encode(), name="mine")
    else:
        with pytest.raises(UsageError):
            from_json(content.encode(), name="mine")


@pytest.mark.parametrize("expression", [*_SPELLINGS, CL100K + "+", CL100K.replace("++", "+")])
@pytest.mark.parametrize("size", [100, 1000])
def test_every_spelling_of_a_pattern_is_read_as_tokenizers_reads_it(
    expression: str, size: int
) -> None:
    made = json.loads(Variant(pre_tokenizer="cl100k").content())
    made["pre_tokenizer"]["pretokenizers"][0]["pattern"] = {"Regex": expression}
    content = json.dumps(made)
    vocabulary = from_json(content.encode(), name="mine")
    encoder = Encoder(EncodeSettings(vocabulary=vocabulary, delimiter=MARK))
    reference = tokenizers.Tokenizer.from_str(content)
    reference.encode_special_tokens = True
    chance = random.Random(size)
    pieces = [
        "1999",
        "1234567",
        " ",
        "  ",
        "\n",
        "\n\n",
        " \n",
        "they're",
        "IT'S",
        "x",
        "ß",
        "--",
        "\t",
    ]
    text = "".join(chance.choices(pieces, k=size))
    with closing(encoder):
        got = encoder.encode(text.encode(), document_count=0).ids
    assert got.tolist() == reference.encode(text, add_special_tokens=False).ids


# The comparison at the beginning of a run


@pytest.mark.parametrize("size", [500, SAMPLE_BYTES + 1, 5_000_000])
def test_a_first_document_of_any_size_is_compared(size: int) -> None:
    settings = EncodeSettings(vocabulary=taken_for_plain(vocabulary_of(CONTIGUOUS)), delimiter=MARK)
    encoder = Encoder(settings)
    assert encoder.is_fast
    text = make_text(random.Random(1), "prose", size).encode()
    pieces = sample_pieces(encoder, settings, text)
    assert b"".join(pieces) == text[:SAMPLE_BYTES]
    assert find_disagreement(encoder, settings, pieces) is not None
    honest = replace(settings, vocabulary=vocabulary_of(Variant(pre_tokenizer="cl100k")))
    assert find_disagreement(Encoder(honest), honest, pieces) is None


def test_the_reference_is_not_compared_with_itself() -> None:
    """A character that only the reference reads right leaves the rest of its document to be compared."""
    settings = EncodeSettings(vocabulary=taken_for_plain(vocabulary_of(CONTIGUOUS)), delimiter=MARK)
    encoder = Encoder(settings)
    text = make_text(random.Random(1), "prose", 20_000).encode() + "ä\u088f".encode()
    assert encoder.needs_reference(text)
    pieces = sample_pieces(encoder, settings, text)
    assert not any(map(encoder.needs_reference, pieces))
    assert 0 < len(text) - sum(map(len, pieces)) <= 64
    assert find_disagreement(encoder, settings, pieces) is not None


def misread(tmp_path: Path, *, memory: str) -> Prepared:
    """A run whose tokenizer gigatoken reads wrongly, as if we did not know."""
    source = tmp_path / "input.txt"
    source.write_text(make_text(random.Random(1), "prose", 300_000))
    settings = TokenizeSettings(tokenizer=write(CONTIGUOUS, tmp_path), eot="none")
    prepared = prepare([str(source)], settings, memory=memory, workers=1)
    encode = prepared.recipe.encode
    encode = replace(encode, vocabulary=taken_for_plain(encode.vocabulary))
    return replace(prepared, recipe=replace(prepared.recipe, encode=encode))


@pytest.mark.parametrize("memory", ["256MiB", "2GiB"])
@pytest.mark.parametrize("goes_on", [False, True], ids=["fresh", "going on"])
def test_where_the_two_differ_the_reference_encodes_the_run(
    tmp_path: Path, memory: str, *, goes_on: bool
) -> None:
    prepared = misread(tmp_path, memory=memory)
    at = 200_000 if goes_on else 0
    start = Cursor(file=0, position=at, within=at)
    told: list[object] = []
    blocks = read_blocks(prepared.inputs, prepared.read, start=start)
    proven, encoder, left = prove_encoder(prepared, blocks, told.append, resumed=goes_on)
    assert not encoder.is_fast
    assert not proven.recipe.encode.vocabulary.plain
    assert [note.level for note in told if isinstance(note, Note)] == ["warning"]
    assert sum(block.text_bytes for block in left) == (100_000 if goes_on else 300_000)


# What has no token


def test_a_vocabulary_that_lacks_bytes_is_refused(tmp_path: Path) -> None:
    tokenizer = write(Variant(model="a byte missing"), tmp_path)
    (tmp_path / "input.txt").write_text("Dateigröße")
    with pytest.raises(UsageError):
        lowtide.Tokenizer.load(tokenizer)
    with pytest.raises(UsageError):
        lowtide.tokenize(
            [tmp_path / "input.txt"],
            tmp_path / "out",
            TokenizeSettings(tokenizer=tokenizer, eot="none"),
        )
    assert not (tmp_path / "out").exists()


def test_unknown_tokens_are_counted(tmp_path: Path) -> None:
    tokenizer = write(Variant(model="a byte missing, unk"), tmp_path)
    (tmp_path / "input.txt").write_text("Dateigröße, größer!")
    done = lowtide.tokenize(
        [tmp_path / "input.txt"],
        tmp_path / "out",
        TokenizeSettings(tokenizer=tokenizer, eot="none", val=0.0),
    )
    unknown = load_vocabulary(tokenizer).unknown
    train = open_dataset(tmp_path / "out").splits["train"]
    stored = np.count_nonzero(train.read(0, train.tokens) == unknown)
    assert (
        done.manifest.unknown_tokens == stored == 3
    )  # the last is the ! itself, which means the same
    assert read_manifest(tmp_path / "out").unknown_tokens == 3


# Files that cannot be meant


@pytest.mark.parametrize("number", [1 << 31, (1 << 32) + 5, -1])
def test_ids_beyond_all_tables_are_refused_by_name(tmp_path: Path, number: int) -> None:
    made = json.loads(Variant().content())
    made["model"]["vocab"]["never met"] = number
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(made))
    for load in (lowtide.Tokenizer.load, load_vocabulary):
        with pytest.raises(UsageError, match=str(number)):
            load(str(path))


def test_a_file_that_does_not_decode_what_it_encodes_is_refused(tmp_path: Path) -> None:
    made = json.loads(Variant(pre_tokenizer="digits").content())
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(made))
    assert (
        lowtide.Tokenizer.load(path).decode(lowtide.Tokenizer.load(path).encode("größe")) == "größe"
    )
    path.write_text(json.dumps(made | {"decoder": None}))
    with pytest.raises(UsageError):
        lowtide.Tokenizer.load(path)


# Memory


def test_the_reference_apart_gives_the_same_ids_and_says_when_its_memory_is_too_small() -> None:
    vocabulary = vocabulary_of(Variant(normalizer="NFKD"))
    text = make_text(random.Random(1), "prose", 20_000).encode()
    apart = ReferenceApart(vocabulary, "text", allowance_bytes=64 * MIB)
    assert np.array_equal(apart.encode(text), make_reference(vocabulary, "text").encode(text))
    with pytest.raises(ReferenceMemoryError):
        apart.encode(text * 200)
    assert np.array_equal(
        apart.encode(b"again"), make_reference(vocabulary, "text").encode(b"again")
    )
    apart.close()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits the memory of the child")
def test_a_child_without_memory_ends_even_if_it_is_to_print_tracebacks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It printed one, was refused memory for that, and waited for itself forever."""
    monkeypatch.setenv("RUST_BACKTRACE", "1")
    before = set(psutil.Process().children())

    def end_what_hangs() -> None:
        for child in set(psutil.Process().children()) - before:
            child.send_signal(signal.SIGSEGV)

    apart = ReferenceApart(
        vocabulary_of(Variant(pre_tokenizer="cl100k, then gpt2")), "text", allowance_bytes=40 * MIB
    )
    timer = threading.Timer(300, end_what_hangs)
    timer.start()
    try:
        with pytest.raises(ReferenceMemoryError):
            apart.encode(b"a" * 400_000)
    finally:
        timer.cancel()
        apart.close()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells the peak of a text")
def test_what_the_reference_apart_took_for_a_text_is_its_peak() -> None:
    vocabulary = vocabulary_of(Variant(normalizer="NFKD"))
    text = make_text(random.Random(1), "prose", 500_000).encode()
    before = set(psutil.Process().children())
    with closing(ReferenceApart(vocabulary, "text", allowance_bytes=400 * MIB)) as apart:
        apart.encode(text)
        (child,) = set(psutil.Process().children()) - before
        kernel = kib_fields(Path(f"/proc/{child.pid}/status").read_text())
        peak_bytes = kernel["VmHWM"] - kernel["RssFile"]
        # what it held at the end was 15 % less
        assert apart.peak_bytes == pytest.approx(peak_bytes, rel=0.03)
        apart.encode(b"short")
        assert apart.peak_bytes < peak_bytes / 2  # of this text, not of all


@pytest.mark.slow  # a document of megabytes, by the reference
def test_the_budget_that_a_refusal_names_is_enough(tmp_path: Path) -> None:
    tokenizer = write(Variant(pre_tokenizer="bytes, no pattern"), tmp_path)
    text = make_text(random.Random(1), "prose", 2_500_000)
    (tmp_path / "input.txt").write_text(text)
    settings = TokenizeSettings(tokenizer=tokenizer, eot="none", val=0.0)
    with pytest.raises(DataError) as refused:
        lowtide.tokenize([tmp_path / "input.txt"], tmp_path / "out", settings, memory="256MiB")
    named = re.search(r"--memory (\S+)`", refused.value.remedy)
    assert named
    assert parse_bytes(named[1]) < 1 << 30
    lowtide.tokenize([tmp_path / "input.txt"], tmp_path / "out", settings, memory=named[1])
    train = open_dataset(tmp_path / "out").splits["train"]
    expected = make_reference(load_vocabulary(tokenizer), "text").encode(text.encode())
    assert np.array_equal(train.read(0, train.tokens), expected)


# Afterwards


def test_verify_says_that_ids_are_not_the_references(tmp_path: Path) -> None:
    (tmp_path / "input.txt").write_text("one <|endoftext|> two")
    settings = TokenizeSettings(special_in_text="token", val=0.0)
    lowtide.tokenize([tmp_path / "input.txt"], tmp_path / "out", settings, listen=ignore)
    manifest = read_manifest(tmp_path / "out")
    other = manifest.settings | {"special_in_text": "text"}  # as if an encoder had been wrong
    write_manifest(tmp_path / "out", replace(manifest, settings=other))
    proof = verify(tmp_path / "out")
    assert (proof.other_ids, proof.compared_documents) == (1, 1)
    assert not proof.verification.sound


@pytest.mark.slow  # real runs in boxes
@pytest.mark.cgroup
def test_variants_in_boxes_are_equal_or_refused() -> None:
    campaign = Campaign(seed=3, variants=15, documents=1, largest_bytes=1_500_000)
    outcomes = list(campaign.run())
    assert not campaign.bad
    assert sum(one.verdict == "equal" for one in outcomes) >= 8


@pytest.mark.parametrize(
    ("number", "error"),
    [(signal.SIGKILL, ReferenceMemoryError), (signal.SIGSEGV, SharedFaultError)],
)
def test_only_a_death_by_memory_is_called_one(
    number: signal.Signals, error: type[DataError]
) -> None:
    apart = ReferenceApart(vocabulary_of(Variant()), "text", allowance_bytes=64 * MIB)
    before = set(psutil.Process().children())
    apart.encode(b"one")
    (child,) = set(psutil.Process().children()) - before
    child.send_signal(number)
    with pytest.raises(DataError) as caught:
        apart.encode(b"two")
    assert type(caught.value) is error
    assert len(apart.encode(b"three"))
    apart.close()
