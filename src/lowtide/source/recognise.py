"""Recognise files that are not text by their first bytes, and say how to get text out of them.

Some bytes are proof: archives, compressed files, pictures, programs, UTF-16. Such a file is refused
whatever it is called. Where a sign is made of plain characters, such as `GIF89a`, a text may begin so too:
then a second sign is needed, a NUL or bytes that are not UTF-8 in the first 8 KiB. `--input-format text` makes
valid UTF-8 text whatever it begins with. HTML, CSV, JSON and a PDF of plain characters are text of a kind, but
their markup would be learnt: they are refused until `--input-format` says how they are meant.
"""

from __future__ import annotations

import codecs
import json
import re
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from shlex import quote

from lowtide.errors import DataError
from lowtide.units import KIB, MIB

SNIFFED_BYTES = 8 * KIB
_ZSTD_WINDOW_BYTES = 8 * MIB
"""A frame with a larger window is looked at when it is read, inside the budget."""
_TAR_BLOCK_BYTES = 512
_CONTROLS = bytes({*range(32), 127} - set(b"\t\n\v\f\r\b\x1b"))
_PLAIN = bytes({*range(32, 127), *b"\t\n\r"})
_JSON_OBJECT = re.compile(rb'\{\s*"(?:[^"\\]|\\.)*"\s*:', re.DOTALL)
_PLAIN_PDF = re.compile(rb"\s*%PDF-\d\.\d[ \t]*(?:[\r\n]|$)")
"""The version alone on its line: a sentence about the format goes on behind it."""
_HTML = re.compile(rb"<(?:!doctype\s+html|html)\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Foreign:
    """A file that is not text."""

    what: str
    remedy: str
    """`FILE` stands for its name, quoted for a shell."""


_AS_TEXT = "to read it including its markup, pass `--input-format text`"


def _archive(kind: str, unpack: str) -> Foreign:
    return Foreign(
        what=f"a {kind} archive", remedy=f"unpack it first (`{unpack}`), and name the folder"
    )


def _compressed(kind: str, command: str) -> Foreign:
    return Foreign(
        what=f"compressed with {kind}",
        remedy=f"decompress it on the way: `{command} -dc FILE | lowtide tokenize -`",
    )


def _packed(kind: str, command: str, suffix: str) -> Foreign:
    return Foreign(
        what=f"compressed with {kind}, which its name does not say",
        remedy=f"give it a name that ends in `{suffix}`, or decompress it on the way: "
        f"`{command} -dc FILE | lowtide tokenize -`",
    )


def _rows(kind: str, name: str) -> Foreign:
    return Foreign(
        what=f"a {kind} file, which its name does not say",
        remedy=f"give it a name that ends in `.{name}`, or pass `--input-format {name}`",
    )


def _binary(what: str) -> Foreign:
    return Foreign(
        what=what,
        remedy="leave it out, or write the text in it as plain text, JSONL or Parquet",
    )


def _other_encoding(name: str) -> Foreign:
    return Foreign(
        what=f"text in {name}",
        remedy=f"convert it: `iconv -f {name} -t UTF-8 FILE > NEW`, and name that",
    )


_TAR = _archive("tar", "tar -xf FILE -C FOLDER")
_BINARY = _binary("binary data")
_PDF = Foreign(what="a PDF", remedy="take its text out: `pdftotext FILE NEW.txt`")
FEATHER_1_MAGIC = b"FEA1"
FEATHER_1 = Foreign(
    what="a Feather file of version 1, which is not Arrow",
    remedy="write it again as version 2: "
    "`pyarrow.feather.write_feather(pyarrow.feather.read_table(OLD), NEW, version=2)`",
)
_MAGIC: tuple[tuple[re.Pattern[bytes], Foreign], ...] = tuple(
    (re.compile(pattern, re.DOTALL), foreign)
    for pattern, foreign in (
        (rb"PK(?:\x03\x04|\x05\x06|\x07\x08)", _archive("zip", "unzip FILE -d FOLDER")),
        (rb"7z\xbc\xaf\x27\x1c", _archive("7z", "7z x FILE -oFOLDER")),
        (rb"Rar!\x1a\x07", _archive("rar", "unrar x FILE FOLDER/")),
        (rb"\x1f\x8b\x08", _packed("gzip", "gzip", ".gz")),
        (rb"\x28\xb5\x2f\xfd", _packed("zstd", "zstd", ".zst")),
        (rb"\xfd7zXZ\x00", _compressed("xz", "xz")),
        (rb"\x5d\x00\x00[\x00-\xff]{2}\xff{8}", _compressed("lzma", "xz")),
        (rb"BZh[1-9](?:1AY&SY|\x17rE8P\x90)", _compressed("bzip2", "bzip2")),
        (rb"\x04\x22\x4d\x18", _compressed("lz4", "lz4")),
        (rb"LZIP\x01", _compressed("lzip", "lzip")),
        (rb"\x1f\x9d", _compressed("compress", "gzip")),
        (rb"\s*%PDF-\d\.\d\s*%[\x80-\xff]{4}|\s*%PDF-\d", _PDF),
        (rb"PAR1\x15", _rows("Parquet", "parquet")),
        (rb"ARROW1\x00\x00", _rows("Arrow", "arrow")),
        (FEATHER_1_MAGIC, FEATHER_1),
        (rb"\x89PNG\r\n|\xff\xd8\xff|GIF8[79]a|II\*\x00|MM\x00\*", _binary("a picture")),
        (
            rb"RIFF.{4}(?:WAVE|WEBP|AVI )|OggS\x00|fLaC\x00|ID3[\x02-\x04]|\x00\x00\x00.ftyp",
            _binary("a recording or a picture"),
        ),
        (
            rb"\x7fELF|MZ.{0,126}\x00\x00|\xca\xfe\xba\xbe|[\xcf\xce]\xfa\xed\xfe|\x00asm",
            _binary("a program"),
        ),
        (rb"SQLite format 3\x00", _binary("an SQLite database")),
        (rb"\x93NUMPY", _binary("a NumPy array")),
        (rb"\x80[\x02-\x05][\x95}\])(cK]", _binary("pickled Python objects")),
        (rb"\x89HDF\r\n", _binary("an HDF5 file")),
        (rb"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", _binary("an Office document")),
        (rb"\xff\xfe\x00\x00|\x00\x00\xfe\xff", _other_encoding("UTF-32")),
        (rb"\xff\xfe|\xfe\xff", _other_encoding("UTF-16")),
    )
)
"""What a file begins with, and what that proves."""

_PDF_OF_TEXT = Foreign(what="a PDF", remedy=f"{_PDF.remedy}; {_AS_TEXT}")
_HTML_PAGE = Foreign(
    what="HTML",
    remedy=f"take its text out first (`pandoc -t plain FILE -o NEW.txt`); {_AS_TEXT}",
)
_JSON_LINES = Foreign(
    what="JSON, one object a line",
    remedy=f"pass `--input-format jsonl` to read a field of each line (`--column`); {_AS_TEXT}",
)
_ARRAY_OF_JSON = Foreign(
    what="a JSON array",
    remedy=f"write one object a line: `jq -c '.[]' FILE > NEW.jsonl`; {_AS_TEXT}",
)
_OBJECT_OF_JSON = Foreign(
    what="a JSON object",
    remedy=f"write its texts as JSONL, one object a line; {_AS_TEXT}",
)


def _table(kind: str) -> Foreign:
    return Foreign(
        what=f"a {kind} table",
        remedy=f"write its rows as JSONL or Parquet, and name the column of the text; {_AS_TEXT}",
    )


_BY_SUFFIX = {
    ".csv": _table("CSV"),
    ".tsv": _table("TSV"),
    ".html": _HTML_PAGE,
    ".htm": _HTML_PAGE,
    ".xhtml": _HTML_PAGE,
    ".xml": Foreign(what="XML", remedy=f"write its texts as plain text or JSONL; {_AS_TEXT}"),
    ".ipynb": Foreign(
        what="a Jupyter notebook",
        remedy=f"take its text out first (`jupyter nbconvert --to markdown FILE`); {_AS_TEXT}",
    ),
    ".rtf": Foreign(
        what="RTF",
        remedy=f"take its text out first (`pandoc -t plain FILE -o NEW.txt`); {_AS_TEXT}",
    ),
    ".ps": Foreign(
        what="PostScript", remedy=f"take its text out first (`ps2ascii FILE NEW.txt`); {_AS_TEXT}"
    ),
}


def recognise(start: bytes, *, suffix: str = "", stated: str | None) -> Foreign | None:
    """What a file that begins so is, if it is not text; None for text.

    `suffix` is its name's, below a compression's. `stated` is how somebody has said that the file is to be
    read ("text", "jsonl"), or None; if it is given, only what is proven counts.
    """
    proven = _recognise_bytes(start, is_stated_text=stated == "text")
    text = start.removeprefix(codecs.BOM_UTF8).lstrip()
    if proven is None and stated == "jsonl" and _is_one_array(text):
        return _ARRAY_OF_JSON
    if proven is not None or stated is not None:
        return proven
    if not text:
        return None
    if suffix in _BY_SUFFIX:
        return _BY_SUFFIX[suffix]
    if _HTML.match(text):
        return _HTML_PAGE
    if _PLAIN_PDF.match(text):
        return _PDF_OF_TEXT
    return recognise_json(text) if suffix == ".json" and text[:1] in (b"[", b"{") else None


def recognise_stream(start: bytes, *, stated: str | None) -> Foreign | None:
    """The same for what has no name: JSON is known by its beginning too."""
    found = recognise(start, stated=stated)
    if found is not None or stated is not None:
        return found
    text = start.removeprefix(codecs.BOM_UTF8).lstrip()
    return recognise_json(text) if _JSON_OBJECT.match(text) or _begins_json_array(text) else None


def _begins_json_array(text: bytes) -> bool:
    """Whether it begins with a list whose first item is JSON, unlike `[[Category]]` or `["so" they said]`.

    Lists of numbers and words are text. An object may go on behind the bytes at hand: its first key tells.
    """
    inside = text[1:].lstrip()
    if text[:1] != b"[" or inside[:1] not in (b"[", b"{", b'"'):
        return False
    if _JSON_OBJECT.match(inside):
        return True
    line = inside.decode(errors="replace")
    try:
        _, end = json.JSONDecoder().raw_decode(line)
    except (ValueError, RecursionError):
        return False
    return line[end:].lstrip()[:1] in (",", "]", "")


def _is_one_array(text: bytes) -> bool:
    """Whether it is a list of objects, and not a bad line before good ones."""
    line, _, rest = text.partition(b"\n")
    goes_on = line.rstrip().endswith(b"]") and rest.strip() != b""
    return not goes_on and text[:1] == b"[" and bool(_JSON_OBJECT.match(text[1:].lstrip()))


def recognise_json(text: bytes) -> Foreign:
    """Which of its forms some JSON has, by its first line."""
    if text[:1] == b"[":
        return _ARRAY_OF_JSON
    line, _, rest = text.partition(b"\n")
    if not rest and len(text) >= SNIFFED_BYTES // 2:
        return (
            _JSON_LINES  # a long first line: an object that is laid out for people has short ones
        )
    try:
        is_whole = isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        is_whole = False
    return _JSON_LINES if is_whole else _OBJECT_OF_JSON


def begins_like_rows(start: bytes, kind: str) -> bool:
    """Whether a file may hold rows of this kind ("jsonl", "parquet", "arrow"), by its first bytes."""
    if kind == "parquet":
        return start.startswith(b"PAR1")
    if kind == "arrow":
        return start.startswith((b"ARROW1", b"\xff\xff\xff\xff"))
    return start.removeprefix(codecs.BOM_UTF8).lstrip().startswith(b"{")


def refuse_foreign(name: str, found: Foreign | None) -> None:
    """A DataError for what is not text."""
    if found is None:
        return
    if name == "-":
        raise DataError(f"standard input is {found.what}", remedy=_for_stream(found.remedy))
    raise DataError(f"{name} is {found.what}", remedy=_for_file(found.remedy, quote(name)))


def _for_file(remedy: str, name: str) -> str:
    return re.sub(r"\bFILE\b", lambda _: name, remedy)


def _for_stream(remedy: str) -> str:
    """`xz -dc FILE | lowtide` becomes `xz -dc | lowtide`; what needs a file says so by its word."""
    return remedy.replace("-dc FILE", "-dc").replace("give it a name", "save it under a name")


def read_start(path: Path, compression: str) -> bytes:
    """The first bytes of a file's content; none where it cannot be decompressed, which its reader tells.

    Holds a zstd window of at most 8 MiB for the moment.
    """
    with path.open("rb") as file:
        stored = file.read(SNIFFED_BYTES)
        if not compression or not stored:
            return stored
        if compression == "gz":
            return _unpack(lambda: zlib.decompressobj(wbits=31).decompress(stored, SNIFFED_BYTES))
        import zstandard

        file.seek(0)
        unpacker = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_BYTES)
        return _unpack(lambda: unpacker.stream_reader(file).read(SNIFFED_BYTES))


def _unpack(unpack: Callable[[], bytes]) -> bytes:
    import zstandard

    try:
        return unpack()
    except (zlib.error, zstandard.ZstdError, MemoryError):
        return b""


def _recognise_bytes(start: bytes, *, is_stated_text: bool) -> Foreign | None:
    for pattern, foreign in _MAGIC:
        sign = pattern.match(start)
        if sign and _is_proof(sign.group(), start, is_stated_text=is_stated_text):
            return foreign
    if _is_tar(start):
        return _TAR
    if (encoding := _wide_encoding(start)) is not None:
        return _other_encoding(encoding)
    return _BINARY if _is_binary(start) else None


def _is_proof(sign: bytes, start: bytes, *, is_stated_text: bool) -> bool:
    """Whether a sign at the start proves something, by whether the rest may be text."""
    has_nul, is_bad = b"\0" in start, not _is_utf8_start(start)
    is_plain = sign.isascii() and not sign.translate(None, _PLAIN)
    if is_stated_text:
        return (has_nul and is_bad) if is_plain else (has_nul or is_bad)
    return has_nul or is_bad or not is_plain


def _is_tar(start: bytes) -> bool:
    """Whether the first 512 bytes are a tar header: they carry a checksum of themselves."""
    header = start[:_TAR_BLOCK_BYTES]
    if len(header) < _TAR_BLOCK_BYTES:
        return False
    stored = header[148:156].strip(b" \0")
    if not re.fullmatch(rb"[0-7]{1,7}", stored):
        return False
    return sum(header[:148]) + sum(header[156:]) + 8 * 32 == int(stored, 8)


def _wide_encoding(start: bytes) -> str | None:
    """UTF-16 without a mark: of Latin text every other byte is NUL."""
    pairs = len(start) // 2
    if pairs < 32:
        return None
    low, high = start[0 : 2 * pairs : 2].count(0), start[1 : 2 * pairs : 2].count(0)
    if 10 * min(low, high) > pairs or 10 * max(low, high) < 7 * pairs:
        return None
    return "UTF-16LE" if high > low else "UTF-16BE"


def _is_binary(start: bytes) -> bool:
    """Many control characters; where all else is valid UTF-8 it takes more of them, for text may hold a NUL."""
    controls = len(start) - len(start.translate(None, _CONTROLS))
    if 10 * controls > 3 * len(start):
        return len(start) >= _TAR_BLOCK_BYTES or not _is_utf8_start(start)
    return 100 * controls > len(start) and not _is_utf8_start(start)


def _is_utf8_start(start: bytes) -> bool:
    """Whether it is valid but for a character that lies across the end."""
    try:
        codecs.getincrementaldecoder("utf-8")().decode(start)
    except UnicodeDecodeError:
        return False
    return True
