"""The result of `train-tokenizer`: as names and sentences for people, as plain values for scripts.

Tokens and paths are escaped: a token may be a sequence that clears the screen.
"""

from __future__ import annotations

import heapq
from dataclasses import asdict, dataclass

from lowtide.stages.curve_picture import PICTURE_NAME
from lowtide.stages.folder import TOKENIZER
from lowtide.stages.learn_run import Learning, LearntSize
from lowtide.stages.measure_tokenizer import Comparison, NotCompared
from lowtide.stages.tokenizer_files import RUN_NAME, TokenizerManifest
from lowtide.stages.train_tokenizer import TokenizerResult
from lowtide.units import format_bytes, format_count, format_seconds, printable

LONGEST_TOKENS = 5
_SHOWN_CHARACTERS = 40
_SHOWN_SIZES = 8

Rows = list[tuple[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class LongToken:
    """A token as it is shown."""

    text: str
    """Escaped, and cut where it is too long for a line."""
    size_bytes: int


def training_rows(result: TokenizerResult) -> Rows:
    """The result as names and sentences, each figure with where it comes from."""
    manifest = result.manifest
    rows = [("folder", printable(str(result.folder))), *_corpus_rows(manifest)]
    for number, size in enumerate(manifest.learnt[:_SHOWN_SIZES]):
        rows += _size_rows(size, manifest.settings.min_frequency)
        if isinstance(result.comparison, Comparison):
            rows.append(("  compared", _compare(result.comparison, number)))
    if (more := len(manifest.learnt) - _SHOWN_SIZES) > 0:
        rows.append(("", f"and {more} more, see {TOKENIZER.manifest_name} and {RUN_NAME}"))
    if result.learning is not None:
        if isinstance(result.comparison, NotCompared):
            rows.append(("compared", f"not with gpt2: {result.comparison.why}"))
        for number, token in enumerate(longest_tokens(result.learning)):
            name = "" if number else "longest"
            rows.append((name, f"{token.text} ({token.size_bytes:,} bytes)"))
    rows.append(("picture", printable(str(result.folder / PICTURE_NAME))))
    if result.already_done:
        return [*rows, ("time", "none: the folder holds this very tokenizer already")]
    peak = format_bytes(result.peak_private_bytes)
    return [
        *rows,
        ("time", f"{format_seconds(result.seconds)} (measured)"),
        ("peak memory", f"{peak} private (measured)"),
    ]


def training_record(result: TokenizerResult) -> dict[str, object]:
    """The result as plain values. What only a run can measure is None if the folder was finished before."""
    manifest = result.manifest
    longest = None if result.learning is None else longest_tokens(result.learning)
    return {
        "folder": result.folder,
        "already_done": result.already_done,
        "seconds": round(result.seconds, 3),
        "peak_private_bytes": result.peak_private_bytes,
        "files": len(manifest.corpus),
        "text_bytes": manifest.text_bytes,
        "documents": manifest.documents,
        "words": manifest.words,
        "distinct_words": manifest.distinct_words,
        "longest_word_bytes": manifest.longest_word_bytes,
        "bad_rows": manifest.bad_rows,
        "empty_documents": manifest.empty_documents,
        "skipped": [asdict(item) for item in result.skipped],
        "min_frequency": manifest.settings.min_frequency,
        "learnt": [asdict(size) for size in manifest.learnt],
        "compared": _comparison_record(result.comparison),
        "longest_tokens": None if longest is None else [asdict(token) for token in longest],
        "picture": result.folder / PICTURE_NAME,
    }


def longest_tokens(learning: Learning) -> list[LongToken]:
    """The longest tokens that were merged, the longest first; of equally long ones the smallest bytes first."""
    pairs = learning.byte_pairs(max(learning.settings.vocab_size))
    merged = (token for token in pairs.tokens if len(token) > 1)
    longest = heapq.nsmallest(LONGEST_TOKENS, merged, key=lambda token: (-len(token), token))
    return [LongToken(text=show_token(token), size_bytes=len(token)) for token in longest]


def show_token(token: bytes) -> str:
    r"""The token as text in quotes, at most 40 characters of it; a long run of one character by its length.

    >>> show_token(b' na\xc3\xafve\n'), show_token(b'\x1b[2J'), show_token(b' ' * 64)
    ('" naïve\\n"', '"\\x1b[2J"', '" " × 64')
    """
    text = token.decode("utf-8", "surrogateescape")
    if len(text) > _SHOWN_CHARACTERS and text == text[0] * len(text):
        return f"{_quote(text[0])} × {len(text):,}"
    return _quote(text)


def _quote(text: str) -> str:
    """Quote the text; different texts that are shown whole look different."""
    shown = ""
    for character in text:
        piece = f"\\{character}" if character in '"\\' else _visible(character)
        if len(shown) + len(piece) > _SHOWN_CHARACTERS:
            return f'"{shown}…"'
        shown += piece
    return f'"{shown}"'


def _visible(character: str) -> str:
    number = ord(character)
    if character.isprintable():
        return character
    if 0xDC80 <= number <= 0xDCFF:  # how Python carries a byte that is not text
        return f"\\x{number - 0xDC00:02x}"
    if 0x80 <= number <= 0xFF:  # `\x85` would be such a byte
        return f"\\u{number:04x}"
    return character.encode("unicode_escape").decode()


def _corpus_rows(manifest: TokenizerManifest) -> Rows:
    text = f"{format_bytes(manifest.text_bytes)} of text"
    documents = _many(manifest.documents, "document")
    if manifest.settings.val:
        documents += ", held-out ones among them"
    distinct = format_count(manifest.distinct_words)
    rows = [
        ("corpus", f"{_many(len(manifest.corpus), 'file')}, {text}, {documents} (measured)"),
        ("words", f"{format_count(manifest.words)}, {distinct} of them distinct (measured)"),
    ]
    if manifest.bad_rows:
        rows.append(("bad text", f"{_many(manifest.bad_rows, 'place')}, replaced or left out"))
    if manifest.empty_documents:
        rows.append(("left out", _many(manifest.empty_documents, "empty document")))
    return rows


def _size_rows(size: LearntSize, min_frequency: int) -> Rows:
    return [
        ("vocabulary", _state_tokens(size, min_frequency)),
        ("  corpus", f"{size.bytes_per_token:.2f} bytes a token (measured, exact)"),
        (
            "  covered",
            f"{100 * size.whole_words:.1f} % of the words are one token (measured, exact)",
        ),
    ]


def _state_tokens(size: LearntSize, min_frequency: int) -> str:
    if size.tokens >= size.vocab_size:
        return f"{size.tokens:,} tokens"
    why = (
        f"no other pair of tokens comes at least {min_frequency:,} times"
        if min_frequency > 1
        else "the corpus has no other pair of tokens"
    )
    return f"learnt {size.tokens:,} of {size.vocab_size:,} tokens: {why}"


def _compare(comparison: Comparison, number: int) -> str:
    rate = comparison.learnt[number]
    text = f"{comparison.text} ({format_bytes(comparison.text_bytes)})"
    gpt2 = f"gpt2 {comparison.gpt2:.2f}: {rate / comparison.gpt2:.2f} × as much (measured)"
    return f"{rate:.2f} bytes a token on {text}, {gpt2}"


def _comparison_record(
    comparison: Comparison | NotCompared | None,
) -> dict[str, object] | None:
    if not isinstance(comparison, Comparison):
        return None
    ratios = [rate / comparison.gpt2 for rate in comparison.learnt]
    return {**asdict(comparison), "learnt": list(comparison.learnt), "times_gpt2": ratios}


def _many(count: int, thing: str) -> str:
    """`1 file`, `2 files`, `21.8k documents`."""
    return f"{format_count(count)} {thing}{'' if count == 1 else 's'}"
