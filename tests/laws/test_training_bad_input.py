"""Bad input to `train-tokenizer` gets a clear error with a remedy that works, and nothing is lost."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import lowtide
from bench.power_cut import mounted_tmpfs
from lowtide import TokenizerSettings
from lowtide.errors import DataError, UsageError, VerificationError
from lowtide.events import Advanced, Event
from tests.commands import assert_nothing_half_written
from tests.commands import lowtide as run_lowtide
from tests.corpora import SEPARATOR, make_documents
from tests.laws.test_trained_same_bytes import invented_words
from tests.trained import read_trained, trained_bytes


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("\n".join(make_documents(4, count=20)), newline="")
    return path


@pytest.mark.parametrize("content", [b"", b"\n"], ids=["empty", "nothing but a blank"])
def test_a_corpus_without_text_is_refused_or_learnt_from(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "empty.txt"
    path.write_bytes(content)
    done = run_lowtide("train-tokenizer", path, "--out", tmp_path / "out")
    if content:
        assert done.code == 0, done.err
        return
    assert done.code == 1
    assert "no text at all" in done.problem
    assert_nothing_half_written(tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_fewer_pairs_than_asked_for_is_said_clearly(tmp_path: Path) -> None:
    path = tmp_path / "small.txt"
    path.write_text("low low low lower lowest")
    done = run_lowtide("train-tokenizer", path, "--out", tmp_path / "out")
    assert done.code == 0, done.err
    vocabulary, merges = read_trained(tmp_path / "out")
    assert len(vocabulary) == 257 + len(merges)
    assert f"{len(vocabulary)} of 32,000" in done.out
    assert lowtide.Tokenizer.load(tmp_path / "out").size == len(vocabulary)


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (["--vocab-size", "256"], "too small"),
        (["--vocab-size", "0"], "too small"),
        (["--vocab-size", "300,100"], "too small"),
        (["--vocab-size", "abc"], "abc"),
        (["--special-token", ""], "empty"),
        (["--special-token", "<a>", "--special-token", "<a>"], "2 times"),
        (["--special-token", "<" + "a" * 5000 + ">"], "bytes long"),
        (["--special-token", "a"], "ordinary token"),
        (["--special-token", "Ġthe"], "ordinary token"),
        (["--special-token", "<a>", "--no-special-token"], "contradict"),
        (["--min-frequency", "-1"], "below zero"),
        (["--val", "1"], "val cannot be 1.0"),
        (["--separator", ""], "separator is empty"),
        (["--workers", "0"], "number of threads"),
        (["--memory", "10MiB"], "needs"),
        (["--memory", "128MiB", "--vocab-size", "2000000"], "learning merges needs"),
    ],
)
def test_wrong_settings_are_refused_before_anything_is_written(
    tmp_path: Path, text: Path, flags: list[str], problem: str
) -> None:
    done = run_lowtide("train-tokenizer", text, "--out", tmp_path / "out", *flags)
    assert done.code in (2, 3)
    assert problem in done.problem
    assert not (tmp_path / "out").exists()


def test_the_advice_about_a_small_vocabulary_works(tmp_path: Path, text: Path) -> None:
    arguments = ("train-tokenizer", text, "--out", tmp_path / "out")
    refused = run_lowtide(*arguments, "--vocab-size", "12")
    done = run_lowtide(*arguments, *refused.advice)
    assert done.code == 0, done.err
    assert read_trained(tmp_path / "out")[1] == []


@pytest.mark.slow
def test_a_word_of_100_mb_is_refused_in_a_small_budget_and_learnt_in_a_large_one(
    tmp_path: Path,
) -> None:
    """Four seconds; the largest budget that is asked for is 2 GiB, of which half is used."""
    path = tmp_path / "word.txt"
    path.write_bytes(b"ab" * 50_000_000)
    arguments = ("train-tokenizer", path, "--out", tmp_path / "out", "--vocab-size", "270")
    refused = run_lowtide(*arguments, "--memory", "256MiB")
    assert refused.code == 1
    assert "--memory" in refused.hint
    done = run_lowtide(*arguments, "--memory", "2GiB")
    assert done.code == 0, done.err
    tokens = lowtide.Tokenizer.load(tmp_path / "out").vocabulary.values()
    assert max(map(len, tokens)) == 2**13


def test_changed_settings_or_inputs_are_listed_and_refused(tmp_path: Path, text: Path) -> None:
    settings = TokenizerSettings(vocab_size=(400,))
    lowtide.train_tokenizer([text], tmp_path / "out", settings)
    before = trained_bytes(tmp_path / "out")
    with pytest.raises(UsageError, match="vocab-size was"):
        lowtide.train_tokenizer([text], tmp_path / "out", TokenizerSettings(vocab_size=(500,)))
    text.write_text("other text")
    with pytest.raises(UsageError, match=r"text.txt"):
        lowtide.train_tokenizer([text], tmp_path / "out", settings)
    assert trained_bytes(tmp_path / "out") == before
    lowtide.train_tokenizer([text], tmp_path / "out", settings, restart=True)
    assert trained_bytes(tmp_path / "out") != before


def test_a_finished_folder_tells_which_inputs_are_missing(tmp_path: Path, text: Path) -> None:
    other = tmp_path / "other.txt"
    other.write_text("more words")
    settings = TokenizerSettings(vocab_size=(300,))
    lowtide.train_tokenizer([text, other], tmp_path / "out", settings)
    assert lowtide.train_tokenizer([other, text], tmp_path / "out", settings).already_done
    with pytest.raises(UsageError, match=r"other.txt is no longer") as refused:
        lowtide.train_tokenizer([text], tmp_path / "out", settings)
    assert "new input" not in str(refused.value)


def test_sizes_and_tokens_may_be_given_by_themselves(tmp_path: Path, text: Path) -> None:
    plain = TokenizerSettings(vocab_size=300, special_token="<a>")  # type: ignore[arg-type]
    lowtide.train_tokenizer([text], tmp_path / "plain", plain)
    several = TokenizerSettings(vocab_size=(300,), special_token=("<a>",))
    lowtide.train_tokenizer([text], tmp_path / "several", several)
    assert trained_bytes(tmp_path / "plain") == trained_bytes(tmp_path / "several")


def test_a_damaged_file_of_a_finished_folder_is_found(tmp_path: Path, text: Path) -> None:
    settings = TokenizerSettings(vocab_size=(400,))
    lowtide.train_tokenizer([text], tmp_path / "out", settings)
    whole = trained_bytes(tmp_path / "out")
    (tmp_path / "out" / "merges.txt").write_text("#version: 0.2\n")
    with pytest.raises(VerificationError, match=r"merges.txt"):
        lowtide.train_tokenizer([text], tmp_path / "out", settings)
    lowtide.train_tokenizer([text], tmp_path / "out", settings, restart=True)
    assert trained_bytes(tmp_path / "out") == whole


def test_a_folder_of_something_else_is_not_touched(tmp_path: Path, text: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "vocab.json").write_text("mine")
    with pytest.raises(UsageError, match="something else"):
        lowtide.train_tokenizer([text], out)
    lowtide.tokenize([text], tmp_path / "tokens")
    with pytest.raises(UsageError, match="something else"):
        lowtide.train_tokenizer([text], tmp_path / "tokens", restart=True)
    lowtide.train_tokenizer([text], tmp_path / "trained", TokenizerSettings(vocab_size=(300,)))
    with pytest.raises(UsageError, match="something else"):
        lowtide.tokenize([text], tmp_path / "trained", restart=True)
    assert (out / "vocab.json").read_text() == "mine"


def test_a_restart_leaves_what_is_not_ours(tmp_path: Path, text: Path) -> None:
    out = tmp_path / "out"
    lowtide.train_tokenizer([text], out, TokenizerSettings(vocab_size=(300, 400)))
    for place in (out / "notes.md", out / "400" / "notes.md"):
        place.write_text("mine")
    lowtide.train_tokenizer([text], out, TokenizerSettings(vocab_size=(350,)), restart=True)
    assert sorted(path.name for path in out.iterdir() if path.is_dir()) == ["400"]
    assert (out / "notes.md").read_text() == (out / "400" / "notes.md").read_text() == "mine"


def test_text_that_is_not_utf8_follows_the_policy(tmp_path: Path) -> None:
    path = tmp_path / "bad.txt"
    path.write_bytes(b"fine words\nbad \xff word\nfine words\n")
    with pytest.raises(DataError, match=r"bad\.txt"):
        lowtide.train_tokenizer([path], tmp_path / "out", TokenizerSettings(separator="line"))
    again = TokenizerSettings(separator="line", bad_text="skip")
    assert lowtide.train_tokenizer([path], tmp_path / "out", again).manifest.bad_rows == 1
    for policy in ("skip", "replace"):
        settings = TokenizerSettings(separator="line", bad_text=policy)  # type: ignore[arg-type]
        result = lowtide.train_tokenizer([path], tmp_path / policy, settings)
        assert result.manifest.bad_rows == 1


def test_standard_input_is_learnt_from_and_cannot_be_resumed(tmp_path: Path, text: Path) -> None:
    settings = ("--vocab-size", "400", "--out", tmp_path / "piped")
    piped = run_lowtide("train-tokenizer", "-", *settings, stdin=text.read_bytes())
    assert piped.code == 0, piped.err
    assert "cannot be resumed" in piped.err
    again = run_lowtide("train-tokenizer", "-", *settings, stdin=b"other text")
    assert again.code == 2
    assert "standard input" in again.problem
    lowtide.train_tokenizer([text], tmp_path / "read", TokenizerSettings(vocab_size=(400,)))
    assert read_trained(tmp_path / "piped") == read_trained(tmp_path / "read")


@pytest.mark.slow
@pytest.mark.parametrize("megabytes", [1, 2, 3])
def test_a_full_disk_is_told_and_the_same_command_goes_on(tmp_path: Path, megabytes: int) -> None:
    text = tmp_path / "words.txt"
    text.write_text(SEPARATOR.join(invented_words(seed, 40_000) for seed in range(4)))
    flags = ("--vocab-size", "4000", "--separator", SEPARATOR)
    try:
        with mounted_tmpfs(tmp_path / "disk", megabytes=megabytes) as disk:
            full = run_lowtide("train-tokenizer", text, "--out", disk / "out", *flags)
            assert full.code == 1
            assert "ENOSPC" in full.problem
            assert "free space" in full.hint
            assert not (disk / "out" / "lowtide-tokenizer.json").exists()
            subprocess.run(["mount", "-o", "remount,size=64m", str(disk)], check=True)
            done = run_lowtide("train-tokenizer", text, "--out", disk / "out", *flags)
            assert done.code == 0, done.err
            assert not (disk / "out" / ".lowtide").exists()
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no file system can be mounted here: {error}")


def test_when_all_is_held_out_the_error_says_so(tmp_path: Path, text: Path) -> None:
    done = run_lowtide("train-tokenizer", text, "--out", tmp_path / "out", "--val", "0.999")
    assert done.code == 1
    assert "held out: val is 0.999" in done.problem
    assert not (tmp_path / "out").exists()


def test_an_input_that_vanishes_is_told_as_such(tmp_path: Path, text: Path) -> None:
    def listen(event: Event) -> None:
        if isinstance(event, Advanced):
            text.unlink(missing_ok=True)

    with pytest.raises(DataError, match=r"text.txt was there"):
        lowtide.train_tokenizer([text], tmp_path / "out", listen=listen)


def test_commands_for_tokens_know_a_tokenizer_when_they_see_one(tmp_path: Path, text: Path) -> None:
    lowtide.train_tokenizer([text], tmp_path / "out", TokenizerSettings(vocab_size=(300,)))
    for command in ("inspect", "verify"):
        done = run_lowtide(command, tmp_path / "out")
        assert done.code == 2
        assert "holds a tokenizer" in done.problem
    with pytest.raises(UsageError, match="trained tokenizer"):
        lowtide.Tokenizer.load("gpt2").save(tmp_path / "out")
