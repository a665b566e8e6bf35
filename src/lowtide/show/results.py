"""What a command found: a few aligned lines for people, or with `--json` one object. Both go to stdout.

Notes and reasons beside the result go to stderr. Here are the results about datasets, and how every result is
printed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import click
import msgspec

from lowtide.units import format_bytes, format_count, format_seconds, printable

if TYPE_CHECKING:
    from lowtide.dataset.describe import LoaderCheck
    from lowtide.shards.describe import DatasetFacts, Sample, SplitFacts
    from lowtide.shards.manifest import DatasetManifest, ExamplesRecord
    from lowtide.shards.verify import Verification

SCHEMA_VERSION = 1
"""Increased when a key of an object is removed or changes its meaning, not when one is added."""
_SAMPLE_CHARACTERS = 160
_STRETCH_CHARACTERS = 240
_STRETCHES = 16
_LEARN = {
    "assistant": "what the assistant says",
    "completion": "the assistant's last turn",
    "all": "everything",
}
_TOO_LONG = {"split": "split into pieces", "truncate": "cut off there", "skip": "left out"}
_END_OF_TEXT = {
    "end": "behind each document",
    "start": "in front of each document",
    "none": "not there",
}

Rows: TypeAlias = list[tuple[str, str]]
"""Names and values, one pair a line."""


def say(line: str, *, err: bool = False) -> None:
    """Print one line for people, without colours.

    Control characters in names are escaped, so that they cannot steer a terminal or break the line.
    """
    click.echo(printable(line), err=err)


def print_rows(rows: Sequence[tuple[str, str]]) -> None:
    """Print aligned lines, a name and a value each."""
    for name, value in rows:
        say(f"{name:<12} {value}")


def show_rows(
    rows: Sequence[tuple[str, str]], record: Mapping[str, object], *, as_json: bool
) -> None:
    """Print a result that was put into words elsewhere: its rows, or with `--json` all its figures."""
    if as_json:
        print_json(record)
    else:
        print_rows(rows)


def print_json(found: Mapping[str, object]) -> None:
    """Print the object of `--json`: one line of ASCII passes any pipe, whatever the file names are."""
    plain = msgspec.to_builtins({"schema_version": SCHEMA_VERSION, **found}, enc_hook=_plain)
    click.echo(json.dumps(plain))


def _plain(value: object) -> object:
    if isinstance(value, Path):
        return os.fsdecode(value)
    raise TypeError(f"{type(value)} has no JSON form")


def show_dataset(
    folder: Path,
    manifest: DatasetManifest,
    *,
    seconds: float,
    peak_private_bytes: int,
    already_done: bool,
    as_json: bool,
) -> None:
    """Print the result of `tokenize` or `export`."""
    if as_json:
        print_json(
            {
                "folder": folder,
                "seconds": round(seconds, 3),
                "peak_private_bytes": peak_private_bytes,
                "already_done": already_done,
                **_counts(manifest),
            }
        )
        return
    rows = [("folder", str(folder)), *_manifest_rows(manifest)]
    if already_done:
        rows.append(("time", "none: the folder holds this very dataset already"))
    else:
        rows += [
            ("time", f"{format_seconds(seconds)} (measured)"),
            ("peak memory", f"{format_bytes(peak_private_bytes)} private (measured)"),
        ]
    print_rows(rows)


def note_no_validation(manifest: DatasetManifest) -> None:
    """Say on stderr that no document was held out for validation, where some were expected to be."""
    val = manifest.splits.get("val")
    separator = manifest.settings.get("separator", "file")
    parts = manifest.documents > 1 or separator != "file"
    if parts and manifest.settings.get("val") and not (val and val.tokens):
        none = f"none of {manifest.documents} documents was"
        only_text = all(item.kind.split(".")[0] == "text" for item in manifest.inputs)
        if manifest.documents == 1 and only_text:
            none = f"`--separator {separator}` found a single document, which was not"
        elif manifest.documents == 1:
            none = "the only document was not"
        say(
            f"note: {none} assigned to validation; "
            "`--split tail --val 0.1 --restart` holds out the last tenth of the text",
            err=True,
        )


def show_inspection(
    facts: DatasetFacts,
    samples: Sequence[Sample],
    *,
    note: str,
    context: int,
    as_json: bool,
    colour: bool = False,
) -> None:
    """Print a dataset in figures, then some of its documents; in examples the learned part is marked."""
    if as_json:
        print_json({"facts": facts, "samples": list(samples), "note": note})
        return
    rows = [
        ("format", f"{facts.format}, {_many(facts.token_bytes, 'byte')} a token"),
        ("tokenizer", facts.tokenizer.name if facts.tokenizer else "not known"),
    ]
    if facts.tokenizer:
        rows.append(("end-of-text", _END_OF_TEXT[facts.eot]))
    if facts.bytes_per_token is not None:
        size = format_bytes(facts.text_bytes or 0)
        rows.append(("text", f"{size}, {facts.bytes_per_token:.2f} bytes a token"))
    rows += _example_rows(facts.examples) if facts.examples else []
    for split in facts.splits:
        rows += _split_rows(split, context)
    rows += _left_out_rows(facts.bad_rows, facts.empty_documents, facts.unknown_tokens)
    print_rows(rows)
    for sample in samples:
        _show_sample(sample, colour=colour)
    if note:
        say(f"note: {note}", err=True)


def _show_sample(sample: Sample, *, colour: bool) -> None:
    thing = "document" if sample.learnt is None else "example"
    place = f"{thing} {sample.document.number} of {sample.split}"
    say("")
    say(f"{place}, {_many(sample.document.tokens, 'token')}")
    if sample.learnt is None:
        say(f"  {_one_line(sample)}")
        return
    for line in _marked_lines(sample, colour=colour):
        click.echo(f"  {line}", color=colour)


def show_loader(found: LoaderCheck, *, as_json: bool) -> None:
    """Print what a loader did in a few seconds."""
    if as_json:
        print_json(
            {
                "loader": found,
                "batches_per_second": round(found.batches_per_second, 1),
                "tokens_per_second": round(found.tokens_per_second),
                "whole_epoch": found.whole_epoch,
                "exactly_once": found.exactly_once,
            }
        )
        return
    click.echo(str(found.facts))
    grown = max(0, found.private_bytes_after - found.private_bytes_before)
    followed = f"{_many(found.epoch_windows_followed, 'window')} of the epoch followed"
    if found.whole_epoch:
        followed = f"the whole epoch followed, {_many(found.epoch_tokens_followed, 'token')}"
    verdict = "each exactly once" if found.exactly_once else "NOT each exactly once"
    print_rows(
        [
            (
                "speed",
                f"{found.batches_per_second:,.0f} batches of {found.batch_size} a second, "
                f"{format_count(round(found.tokens_per_second))} tokens a second (measured)",
            ),
            ("grown", f"{format_bytes(grown)} private after {found.batches:,} batches (measured)"),
            ("order", f"{followed}, {verdict} (from the order alone, nothing read)"),
        ]
    )


def show_proof(
    found: Verification, *, compared: int, other_ids: int, why_no_more: str, as_json: bool
) -> None:
    """Print what `verify` read, and every problem it found."""
    if as_json:
        print_json(
            {
                "sound": found.sound,
                "files": found.files,
                "tokens": found.tokens,
                "documents": found.documents,
                "ids_checked": found.ids_checked,
                "problems": found.problems,
                "compared_documents": compared,
                "documents_with_other_ids": other_ids,
                "comparison": why_no_more,
            }
        )
        return
    ids = ", ids in range" if found.ids_checked else ", ids not checked (pass `--tokenizer`)"
    if not found.sound:
        ids = ""  # what is damaged says so itself
    rows = [("read", f"{_many(found.files, 'file')}, {_many(found.tokens, 'token')}{ids}")]
    if compared:
        rows.append(("compared", f"{_many(compared, 'document')} with the input"))
    elif found.sound:
        rows.append(("compared", f"none: {why_no_more or 'nothing names the input'}"))
    verdict = "sound" if found.sound else f"damaged: {_many(len(found.problems), 'problem')}"
    if found.sound and not compared and why_no_more:
        verdict = "sound in itself; not compared with its input"
    if other_ids:
        verdict = f"whole, but its ids are not the reference's: {_many(other_ids, 'document')}"
    print_rows([*rows, ("verdict", verdict)])
    for problem in found.problems:
        say(f"  - {problem}")
    if other_ids:  # the files are as they were written: a copy would be no better
        say("hint: make the dataset again, with `--restart`", err=True)
    elif found.problems:
        say("hint: restore the files named above from a copy, or make the dataset again", err=True)


def _counts(manifest: DatasetManifest) -> dict[str, object]:
    splits = {}
    for name, split in manifest.splits.items():
        splits[name] = {
            "tokens": split.tokens,
            "documents": split.documents,
            "files": len(split.shards),
        }
        if split.learnt:
            splits[name]["learnt_tokens"] = split.learnt.tokens
    found: dict[str, object] = {
        "tokens": manifest.tokens,
        "documents": manifest.documents,
        "text_bytes": manifest.text_bytes,
        "bad_rows": manifest.bad_rows,
        "empty_documents": manifest.empty_documents,
        "skipped": manifest.skipped,
        "unknown_tokens": manifest.unknown_tokens,
        "splits": splits,
    }
    return found | ({"examples": manifest.examples} if manifest.examples else {})


def _manifest_rows(manifest: DatasetManifest) -> Rows:
    rows: Rows = []
    rows += _example_rows(manifest.examples) if manifest.examples else []
    for name, split in manifest.splits.items():
        documents = f", {_many(split.documents, 'document')}" if split.index else ""
        holds = f"{_many(split.tokens, 'token')}{documents}, {_many(len(split.shards), 'file')}"
        rows.append((name, holds if split.tokens else "nothing"))
        if split.learnt:
            rows.append(_learnt_row(split.learnt.tokens, split.tokens))
    if manifest.text_bytes and manifest.tokens:
        per_token = manifest.text_bytes / manifest.tokens
        rows.append(("text", f"{format_bytes(manifest.text_bytes)}, {per_token:.2f} bytes a token"))
    return rows + _left_out_rows(
        manifest.bad_rows, manifest.empty_documents, manifest.unknown_tokens
    )


def _left_out_rows(bad_rows: int, empty_documents: int, unknown_tokens: int) -> Rows:
    rows: Rows = []
    if bad_rows:
        places = _many(bad_rows, "place")
        rows.append(("bad text", f"{places}, replaced or left out (listed in lowtide.json)"))
    if empty_documents:
        rows.append(("left out", f"{_many(empty_documents, 'empty document')}"))
    if unknown_tokens:
        stand = f"{_many(unknown_tokens, 'token')} for text that the vocabulary does not have"
        rows.append(("unknown", stand))
    return rows


def _split_rows(split: SplitFacts, context: int) -> Rows:
    if not split.tokens:
        return [(split.name, "nothing")]
    documents = "" if split.documents is None else f", {_many(split.documents, 'document')}"
    files = f"{_many(split.files, 'file')}, {format_bytes(split.stored_bytes)}"
    rows = [(split.name, f"{_many(split.tokens, 'token')}{documents}, {files}")]
    if split.learnt_tokens is not None:
        rows.append(_learnt_row(split.learnt_tokens, split.tokens))
    if split.longest_documents:
        longest = [
            f"{format_count(one.tokens)} (document {one.number})" for one in split.longest_documents
        ]
        rows.append(("  longest", ", ".join(longest)))
    windows = _many(-(-split.tokens // context), "window")
    seen = f"{windows} of {context} tokens an epoch (`--loader` runs one)"
    if split.tokens <= context:
        seen = f"too short for windows of {context} tokens"
    if split.learnt_tokens is not None:
        seen = f"packed into windows of {context} tokens (`--loader` runs an epoch)"
    rows.append(("  loader", seen))
    return rows


def _many(count: int, thing: str) -> str:
    """`1 file`, `2 files`, `21.8M tokens`."""
    return f"{format_count(count)} {thing}{'' if count == 1 else 's'}"


def _one_line(sample: Sample) -> str:
    """The beginning of a document, with what would move the cursor escaped."""
    shown = printable(sample.text[:_SAMPLE_CHARACTERS])
    is_cut = len(sample.text) > _SAMPLE_CHARACTERS or sample.shown_tokens < sample.document.tokens
    return shown + ("…" if is_cut else "")


def _example_rows(record: ExamplesRecord) -> Rows:
    """How rows became tokens, and what was too long."""
    made = (
        f"{format_count(record.examples)} of kind {record.kind}, by the template {record.template}"
    )
    rows = [("examples", made), ("learnt", _LEARN.get(record.learn, record.learn))]
    if record.too_long_count:
        done = _TOO_LONG.get(record.too_long, record.too_long)
        long = f"{format_count(record.too_long_count)} of more than {record.context} tokens, {done}"
        rows.append(("too long", long))
    if record.dropped_count:
        rows.append(
            ("dropped", f"{format_count(record.dropped_count)} with nothing to learn in them")
        )
    return rows


def _learnt_row(learnt_tokens: int, tokens: int) -> tuple[str, str]:
    """`  learnt   1.2M tokens, 31.4 % of them`."""
    share = f", {100 * learnt_tokens / tokens:.1f} %" if tokens else ""
    return "  learnt", f"{format_count(learnt_tokens)} tokens{share}"


def _marked_lines(sample: Sample, *, colour: bool) -> Iterator[str]:
    """The text of an example with its learned parts between « and », and long parts without their middle.

    It ends with … if more follows: later tokens, or learned parts beyond the first few.
    """
    text = ""
    for shown, learnt in _stretches(sample):
        visible = printable(_shortened(shown), keep="\n")
        if learnt:
            visible = f"«{visible}»"
            visible = click.style(visible, fg="green") if colour else visible
        text += visible
    has_more_learnt = len(sample.learnt_text or ()) > _STRETCHES
    if has_more_learnt or sample.shown_tokens < sample.document.tokens:
        text += "…"
    yield from text.split("\n")


def _stretches(sample: Sample) -> Iterator[tuple[str, bool]]:
    """The text in parts, each with whether it is learned; it ends with the last learned part that is shown."""
    spans = sample.learnt_text or ()
    at = 0
    for start, end in spans[:_STRETCHES]:
        yield sample.text[at:start], False
        yield sample.text[start:end], True
        at = end
    if len(spans) <= _STRETCHES:
        yield sample.text[at:], False


def _shortened(text: str) -> str:
    if len(text) <= _STRETCH_CHARACTERS:
        return text
    half = _STRETCH_CHARACTERS // 2
    return f"{text[:half]} … {text[-half:]}"
