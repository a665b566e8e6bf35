"""What a command found, for people as a few aligned lines and with `--json` as one object on stdout."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from lowtide.units import format_bytes, format_count, format_seconds

if TYPE_CHECKING:
    from lowtide.pipeline.estimate import Estimate
    from lowtide.pipeline.examine import Inspection, Proof
    from lowtide.pipeline.tokenize import TokenizeResult
    from lowtide.shards.describe import SplitFacts
    from lowtide.shards.manifest import DatasetManifest

SCHEMA_VERSION = 1
_SAMPLE_CHARACTERS = 160


def show_tokenized(result: TokenizeResult, as_json: bool) -> None:
    """The end of a `tokenize` run."""
    manifest = result.manifest
    if as_json:
        _print_json(
            {
                "folder": str(result.folder),
                "seconds": round(result.seconds, 3),
                "peak_private_bytes": result.peak_private_bytes,
                "already_done": result.already_done,
                **_counts(manifest),
            }
        )
        return
    if result.already_done:
        _print_rows([("done before", f"{result.folder} holds this very dataset already")])
    _print_rows([("folder", str(result.folder)), *_manifest_rows(manifest)])
    if not result.already_done:
        _print_rows(
            [
                ("time", f"{format_seconds(result.seconds)} (measured)"),
                ("peak memory", f"{format_bytes(result.peak_private_bytes)} private (measured)"),
            ]
        )


def show_exported(out: str, manifest: DatasetManifest, as_json: bool) -> None:
    """The end of an `export`."""
    if as_json:
        _print_json({"folder": out, **_counts(manifest)})
        return
    _print_rows([("folder", out), *_manifest_rows(manifest)])


def show_inspection(found: Inspection, as_json: bool) -> None:
    """A dataset in figures, then some of its documents."""
    facts = found.facts
    if as_json:
        _print_json({"facts": facts, "samples": found.samples, "note": found.note})
        return
    tokenizer = facts.tokenizer.name if facts.tokenizer else "not known"
    rows = [
        ("format", f"{facts.format}, {facts.token_bytes} bytes a token, end-of-text {facts.eot}"),
        ("tokenizer", tokenizer),
    ]
    if facts.bytes_per_token is not None:
        rows.append(
            (
                "text",
                f"{format_bytes(facts.text_bytes or 0)}, {facts.bytes_per_token:.2f} bytes a token",
            )
        )
    for split in facts.splits:
        rows += _split_rows(split)
    if facts.bad_rows or facts.empty_documents:
        rows.append(
            ("left out", f"{facts.bad_rows} bad rows, {facts.empty_documents} empty documents")
        )
    _print_rows(rows)
    for sample in found.samples:
        head = (
            f"document {sample.document.number} of {sample.split}, {sample.document.tokens} tokens"
        )
        click.echo(f"\n{head}\n  {_one_line(sample.text)}")
    if found.note:
        click.echo(f"note: {found.note}", err=True)


def show_proof(proof: Proof, as_json: bool) -> None:
    """What `verify` read, and every problem it found."""
    found = proof.verification
    if as_json:
        _print_json(
            {
                "sound": found.sound,
                "files": found.files,
                "tokens": found.tokens,
                "documents": found.documents,
                "ids_checked": found.ids_checked,
                "problems": found.problems,
                "compared_documents": proof.compared_documents,
                "comparison": proof.comparison,
            }
        )
        return
    ids = "ids in range" if found.ids_checked else "ids not checked (no vocabulary named)"
    compared = f"{proof.compared_documents} documents decode to their input"
    _print_rows(
        [
            ("read", f"{found.files} files, {format_count(found.tokens)} tokens, {ids}"),
            ("compared", f"{compared}{f' ({proof.comparison})' if proof.comparison else ''}"),
            ("verdict", "sound" if found.sound else f"{len(found.problems)} problems"),
        ]
    )
    for problem in found.problems:
        click.echo(f"  - {problem}")


def show_estimate(estimate: Estimate, as_json: bool) -> None:
    """What a run would do, and whether it fits."""
    if as_json:
        _print_json(msgspec.to_builtins(estimate))
        return
    _print_rows(estimate.rows())


def _counts(manifest: DatasetManifest) -> dict[str, object]:
    return {
        "tokens": manifest.tokens,
        "documents": manifest.documents,
        "text_bytes": manifest.text_bytes,
        "bad_rows": manifest.bad_rows,
        "empty_documents": manifest.empty_documents,
        "splits": {
            name: {"tokens": split.tokens, "documents": split.documents, "files": len(split.shards)}
            for name, split in manifest.splits.items()
        },
    }


def _manifest_rows(manifest: DatasetManifest) -> list[tuple[str, str]]:
    rows: list[tuple[str, str]] = [
        (
            name,
            f"{format_count(split.tokens)} tokens, {format_count(split.documents)} documents, "
            f"{len(split.shards)} file{'' if len(split.shards) == 1 else 's'}",
        )
        for name, split in manifest.splits.items()
    ]
    if manifest.text_bytes and manifest.tokens:
        per_token = manifest.text_bytes / manifest.tokens
        rows.append(("text", f"{format_bytes(manifest.text_bytes)}, {per_token:.2f} bytes a token"))
    if manifest.bad_rows or manifest.empty_documents:
        rows.append(
            (
                "left out",
                f"{manifest.bad_rows} bad rows, {manifest.empty_documents} empty documents",
            )
        )
    if not manifest.splits["val"].tokens and manifest.settings.get("val"):
        rows.append(("note", "no document fell to val; `--split tail` always holds some text out"))
    return rows


def _split_rows(split: SplitFacts) -> list[tuple[str, str]]:
    known = "unknown" if split.documents is None else format_count(split.documents)
    rows = [
        (
            split.name,
            f"{format_count(split.tokens)} tokens, {known} documents, {split.files} files, "
            f"{format_bytes(split.stored_bytes)}",
        )
    ]
    if split.longest_documents:
        longest = ", ".join(
            f"{one.number} ({format_count(one.tokens)})" for one in split.longest_documents
        )
        rows.append(("  longest", longest))
    return rows


def _one_line(text: str) -> str:
    shown = text[:_SAMPLE_CHARACTERS].encode("unicode_escape").decode()
    return shown + ("…" if len(text) > _SAMPLE_CHARACTERS else "")


def _print_rows(rows: list[tuple[str, str]]) -> None:
    for name, value in rows:
        click.echo(f"{name:<12} {value}")


def _print_json(found: dict[str, object]) -> None:
    click.echo(
        msgspec.json.encode({"schema_version": SCHEMA_VERSION, **found}, enc_hook=_plain).decode()
    )


def _plain(value: object) -> object:
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{type(value)} has no JSON form")
