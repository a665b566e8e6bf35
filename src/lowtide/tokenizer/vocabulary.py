"""Load a tokenizer by name or from a file: its tokens, its pattern, its special tokens.

gpt2                      shipped with lowtide
cl100k_base, o200k_base   tiktoken's cache, or the network
NAME.tiktoken             ranks; the pattern follows from the content or from the name, special tokens
                          from the tokenizer.json beside it
tokenizer.json, a folder  Hugging Face's file
"""

from __future__ import annotations

import binascii
import hashlib
import importlib.resources
import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import xxhash

from lowtide.errors import UsageError
from lowtide.settings import END_OF_TEXT, PatternName
from lowtide.storage.paths import as_path
from lowtide.tokenizer import hugging_face
from lowtide.tokenizer.byte_pairs import unspell
from lowtide.units import MIB, format_bytes

_FIM = ("<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>")
_CL100K_SPECIAL = {
    END_OF_TEXT: 100257,
    _FIM[0]: 100258,
    _FIM[1]: 100259,
    _FIM[2]: 100260,
    "<|endofprompt|>": 100276,
}
_O200K_SPECIAL = {END_OF_TEXT: 199999, "<|endofprompt|>": 200018}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Published:
    """An encoding that OpenAI published, known by the sha256 of its rank file."""

    name: str
    sha256: str
    pattern: PatternName
    special_tokens: dict[str, int]


_PUBLISHED = (
    _Published(
        name="gpt2",
        sha256="306cd27f03c1a714eca7108e03d66b7dc042abe8c258b44c199a7ed9838dd930",
        pattern="gpt2",
        special_tokens={END_OF_TEXT: 50256},
    ),
    _Published(
        name="cl100k_base",
        sha256="223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7",
        pattern="cl100k",
        special_tokens=_CL100K_SPECIAL,
    ),
    _Published(
        name="o200k_base",
        sha256="446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d",
        pattern="o200k",
        special_tokens=_O200K_SPECIAL,
    ),
)
NAMES = tuple(known.name for known in _PUBLISHED)
_BLOBS = "https://openaipublic.blob.core.windows.net/encodings/"
_LARGEST_FILE_BYTES = 256 * MIB
"""The largest tokenizers in use are files of 30 MB; a larger file was named by mistake."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """Everything needed to make an encoder, as plain values; `content` is the file itself."""

    name: str
    kind: Literal["ranks", "json"]
    content: bytes
    pattern: PatternName | None
    """None for a pre-tokenizer without known safe cuts: documents are then encoded whole."""
    size: int
    """One more than the largest id, special tokens included."""
    special_tokens: dict[str, int]
    added_tokens: tuple[str, ...] = ()
    """Found in any text before the pattern is applied, whatever `--special-in-text` says."""
    end_of_text: int | None
    unknown: int | None = None
    """The id that stands for text without a token; None where every text has tokens."""
    why_reference: str | None = None
    """Why only the reference encoder is safe, such as a normalizer; None where gigatoken is."""

    @property
    def plain(self) -> bool:
        """False when only the reference encoder is safe."""
        return self.why_reference is None

    @property
    def fingerprint(self) -> str:
        """A hash of the file and, for rank files, of what the file does not say. Equal for equal ids."""
        extra = repr((self.kind, self.pattern, sorted(self.special_tokens.items())))
        digest = xxhash.xxh3_128(self.content)
        digest.update(extra.encode())
        return str(digest.hexdigest())


def load_vocabulary(source: str) -> Vocabulary:
    """Load a tokenizer by name, file or folder. Costs one read; no encoder is made yet."""
    if source in ("gpt2", "r50k_base"):
        data = importlib.resources.files("lowtide.tokenizer") / "data" / "r50k_base.tiktoken"
        return from_ranks(data.read_bytes(), name="gpt2")
    if source in NAMES:
        return from_ranks(_published_ranks(source), name=source)
    path = as_path(source)
    if path.is_dir():
        path = path / "tokenizer.json"
    if not path.is_file():
        inside = sorted(str(found.parent) for found in path.parent.glob("*/tokenizer.json"))
        choices = inside if Path(source).is_dir() and inside else NAMES
        raise UsageError(
            f"no tokenizer is called {source!r}, and it is not a file or a folder with a tokenizer.json",
            remedy=f"pass one of {', '.join(choices)}, a tokenizer.json, a folder with one, "
            "or a .tiktoken file",
        )
    content = read_tokenizer_file(path)
    if path.suffix == ".tiktoken":
        return _from_json_beside(path, content) or from_ranks(content, name=path.name)
    return from_json(content, name=path.name if path.name != "tokenizer.json" else path.parent.name)


def name_end_of_text(vocabulary: Vocabulary, token: str) -> Vocabulary:
    """A copy of the vocabulary in which this special token ends a document."""
    if token not in vocabulary.special_tokens:
        raise UsageError(
            f"the tokenizer {vocabulary.name} has no special token {token!r}",
            remedy=f"pass {offer_end_of_text(vocabulary)}"
            if vocabulary.special_tokens
            else "leave out `--eot-token`: this tokenizer has no special tokens",
        )
    return replace(vocabulary, end_of_text=vocabulary.special_tokens[token])


def offer_end_of_text(vocabulary: Vocabulary) -> str:
    """`--eot-token` with the vocabulary's first special token, and the names of others; for a remedy."""
    names = sorted(vocabulary.special_tokens, key=lambda name: vocabulary.special_tokens[name])
    others = f" (or one of {', '.join(names[:8])})" if len(names) > 1 else ""
    return f"`--eot-token {shlex.quote(names[0])}`{others}"


def from_ranks(content: bytes, *, name: str) -> Vocabulary:
    """Read a `.tiktoken` file: `base64(token) SPACE rank` on each line.

    The file cannot name special tokens. Where ranks begin at 0, end-of-text gets the id after the last,
    as in the published encodings. Where they begin later, special tokens hold the ids before
    them, and their names are unknown: better no end-of-text than one with the wrong id. Words are cut by
    tiktoken's spelling of the pattern.
    """
    known = _published(content)
    special_tokens: dict[str, int] = {}
    why_reference = None
    if known is not None:  # its ranks are known to be whole: no need to read them now
        name, pattern, special_tokens = known.name, known.pattern, dict(known.special_tokens)
        size = max(special_tokens.values()) + 1
    else:
        pattern = _pattern_in_name(name)
        ranks = parse_ranks(content, name=name).values()
        size = max(ranks) + 1
        if min(ranks) > 0:
            why_reference = f"its ranks begin at {min(ranks)}, and gigatoken wants them from 0"
        else:
            special_tokens = {END_OF_TEXT: size}
            size += 1
    return Vocabulary(
        name=name,
        kind="ranks",
        content=content,
        pattern=pattern,
        size=size,
        special_tokens=special_tokens,
        end_of_text=special_tokens.get(END_OF_TEXT),
        why_reference=why_reference,
    )


def _published(content: bytes) -> _Published | None:
    digest = hashlib.sha256(content).hexdigest()
    return next((known for known in _PUBLISHED if known.sha256 == digest), None)


def _from_json_beside(path: Path, content: bytes) -> Vocabulary | None:
    """The tokenizer.json in a rank file's folder, if both hold the same tokens: it names the special ones."""
    json_path = path.with_name("tokenizer.json")
    if not json_path.is_file() or _published(content) is not None:
        return None
    json_content = read_tokenizer_file(json_path)
    beside = from_json(json_content, name=path.resolve().parent.name)
    vocab = hugging_face.read_file(json_content, name=str(json_path)).model.vocab
    if not isinstance(vocab, dict) or beside.pattern != _pattern_in_name(path.name):
        return None
    special = beside.special_tokens
    tokens = {unspell(text): number for text, number in vocab.items() if text not in special}
    return beside if tokens == parse_ranks(content, name=path.name) else None


def from_json(content: bytes, *, name: str) -> Vocabulary:
    """Read a tokenizer.json. Anything that is not one, or whose ids cannot be relied on, is a UsageError."""
    file = hugging_face.read_file(content, name=name)
    hugging_face.refuse_unusable(file, name=name)
    why_reference = hugging_face.why_reference(file, content)
    is_fast = why_reference is None
    return Vocabulary(
        name=name or "tokenizer.json",
        kind="json",
        content=content,
        pattern=hugging_face.pattern_of(file) if is_fast else None,
        size=file.size,
        special_tokens=file.special_tokens,
        added_tokens=tuple(token.content for token in file.added_tokens if not token.special),
        end_of_text=hugging_face.find_end_of_text(file.special_tokens),
        unknown=file.unknown,
        why_reference=why_reference,
    )


def parse_ranks(content: bytes, *, name: str) -> dict[bytes, int]:
    """The ranks of a `.tiktoken` file. `b"IQ== 0"` is the token `!` with rank 0."""
    lines = [line for line in content.splitlines() if line]
    try:
        pairs = (line.split() for line in lines)
        ranks = {binascii.a2b_base64(token, strict_mode=True): int(rank) for token, rank in pairs}
    except ValueError as cause:
        raise UsageError(
            f"{name} is not a .tiktoken file: {cause}",
            remedy="each line must read base64(token), a space, and the rank",
        ) from cause
    if len(ranks) < 256 or any(bytes([byte]) not in ranks for byte in range(256)):
        raise UsageError(
            f"{name} has {len(ranks)} tokens and not all 256 single bytes among them",
            remedy="pass a byte-level vocabulary: every byte must be a token of its own",
        )
    if not len(lines) == len(ranks) == len(set(ranks.values())):
        raise UsageError(
            f"{name} has a token or a rank twice: {len(lines)} lines, {len(ranks)} tokens, "
            f"{len(set(ranks.values()))} ranks",
            remedy="give every token one line and a rank of its own",
        )
    hugging_face.check_ids(ranks.values(), name=name)
    return ranks


def _pattern_in_name(name: str) -> PatternName:
    """The pattern in a rank file's name, such as `mine.cl100k.tiktoken`: nothing inside the file says it."""
    patterns: tuple[tuple[str, PatternName], ...] = (
        ("o200k", "o200k"),
        ("cl100k", "cl100k"),
        ("gpt2", "gpt2"),
        ("r50k", "gpt2"),
    )
    for word, pattern in patterns:
        if word in name:
            return pattern
    raise UsageError(
        f"{name} does not say which pattern cuts its words: a .tiktoken file holds ranks only",
        remedy="name it after its pattern, such as mine.gpt2.tiktoken, mine.cl100k.tiktoken "
        "or mine.o200k.tiktoken; or pass a tokenizer.json",
    )


def _published_ranks(name: str) -> bytes:
    """The rank file, through tiktoken's own cache (`TIKTOKEN_CACHE_DIR`) and, failing that, the network."""
    from tiktoken.load import read_file_cached

    known = next(known for known in _PUBLISHED if known.name == name)
    try:
        return bytes(read_file_cached(f"{_BLOBS}{name}.tiktoken", known.sha256))
    except (OSError, ValueError, ImportError) as cause:  # requests' errors are OSErrors
        raise UsageError(
            f"{name} is neither in tiktoken's cache nor could it be fetched ({type(cause).__name__})",
            remedy="set TIKTOKEN_CACHE_DIR to a folder that tiktoken has filled on a machine with a network, "
            "or name a file",
            setting="tokenizer",
            value=f"{name}.tiktoken",
        ) from cause


def read_tokenizer_file(path: Path) -> bytes:
    """The bytes of a file that is small enough to be a tokenizer."""
    try:
        size_bytes = path.stat().st_size
        if size_bytes > _LARGEST_FILE_BYTES:
            raise UsageError(
                f"{path} has {format_bytes(size_bytes)}: no tokenizer is as large as that",
                remedy=f"pass a tokenizer file of at most {format_bytes(_LARGEST_FILE_BYTES)}",
            )
        return path.read_bytes()
    except OSError as cause:
        raise UsageError(
            f"cannot read the tokenizer {path}: {cause.strerror}",
            remedy="check the file's permissions",
        ) from cause
