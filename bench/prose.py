"""Make a text of prose in many scripts, for the campaigns: documentation that Debian has translated.

    mkdir debs unpacked; cd debs; apt-get update
    apt-get download gnome-user-docs mate-user-guide installation-guide-amd64 \\
        libreoffice-help-{de,el,en-us,fr,hi,ja,km,ko,ru,vi,zh-cn,zh-tw} \\
        libreoffice-l10n-{am,ar,bn,fa,he,ka,ml,ru,ta,te,th,uk}
    for deb in *.deb; do dpkg-deb -x "$deb" ../unpacked; done; cd ..
    python bench/prose.py --from unpacked --out corpus.txt

Takes web pages, Mallard, DocBook and message catalogues, without their markup. A paragraph that came before
is left out: what nobody translated stands in every language's folder. Documents of up to 64 KiB, shuffled with
a fixed seed, so that the front is like the whole; the same packages give the same bytes. All text is held in
memory for that. Prints how much there is of each script.
"""

from __future__ import annotations

import sys

sys.path[:1] = []  # tokenize.py beside this file would hide a standard module

import argparse
import html
import random
import re
import struct
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

SEPARATOR = "<|endoftext|>"
LONGEST_BYTES = 64 << 10

_NOT_PROSE = re.compile(
    r"<!--.*?-->|<\?.*?\?>|<!DOCTYPE.*?>\s*|<!\[CDATA\[|\]\]>"
    r"|<(script|style|head|header|footer|aside|nav|info|svg)\b[^>]*(?<!/)>.*?</\1\s*>",
    re.DOTALL | re.IGNORECASE,
)
_INLINE = re.compile(
    r"</?(?:a|abbr|acronym|app|b|code|cmd|em|emphasis|file|font|gui|guiseq|guibutton|guilabel|guimenu"
    r"|guimenuitem|i|input|key|keycap|keyseq|link|literal|phrase|quote|span|strong|sub|sup|ulink|var|xref)"
    r"\b[^>]*>",
    re.IGNORECASE,
)
_TAG = re.compile(r"<[^>]*>")
_BLANKS = re.compile(r"[ \t\r\n]+")
"""Not the blanks of other scripts, which are text."""
_LITTLE_ENDIAN_CATALOGUE = 0x950412DE


def paragraphs_of_markup(data: bytes) -> list[str]:
    """What a page says: a paragraph for each element that is not inside a line."""
    text = _INLINE.sub("", _NOT_PROSE.sub("", data.decode()))
    return [html.unescape(_BLANKS.sub(" ", part)).strip(" ") for part in _TAG.split(text)]


def paragraphs_of_catalogue(data: bytes) -> list[str]:
    """The translations in a .mo file. The first, of the empty message, is about the file itself."""
    magic, _, count, _, table = struct.unpack_from("<5I", data)
    if magic != _LITTLE_ENDIAN_CATALOGUE:
        raise ValueError("not a little-endian message catalogue")
    places = struct.iter_unpack("<2I", data[table : table + 8 * count])
    messages = [data[start : start + length].decode() for length, start in places]
    return [line for message in messages[1:] for line in re.split("[\0\n]", message)]


READERS: dict[str, Callable[[bytes], list[str]]] = {
    ".docbook": paragraphs_of_markup,
    ".html": paragraphs_of_markup,
    ".mo": paragraphs_of_catalogue,
    ".page": paragraphs_of_markup,
}


def documents(folder: Path) -> Iterator[str]:
    """The text of every file that can be read, in the order of their paths."""
    said: set[str] = set()
    paths = [path for path in folder.rglob("*") if path.suffix in READERS]
    for path in sorted(paths, key=Path.as_posix):
        if path.is_symlink() or not path.is_file():
            continue
        try:
            found = READERS[path.suffix](path.read_bytes())
        except UnicodeDecodeError:
            continue  # an older charset
        yield from _cut(_new_ones(found, said))


def _new_ones(paragraphs: Iterable[str], said: set[str]) -> Iterator[str]:
    for paragraph in paragraphs:
        if paragraph and paragraph not in said and SEPARATOR not in paragraph:
            said.add(paragraph)
            yield paragraph + "\n"


def _cut(paragraphs: Iterable[str]) -> Iterator[str]:
    """Join paragraphs to documents. A paragraph longer than the longest document is one of its own."""
    part: list[str] = []
    size_bytes = 0
    for paragraph in paragraphs:
        paragraph_bytes = len(paragraph.encode())
        if size_bytes + paragraph_bytes > LONGEST_BYTES and part:
            yield "".join(part)
            part, size_bytes = [], 0
        part.append(paragraph)
        size_bytes += paragraph_bytes
    if part:
        yield "".join(part)


def write(out: Path, texts: Iterable[str]) -> Counter[str]:
    """Write the documents in random order, a separator after each; returns how often each character comes."""
    shuffled = list(texts)
    random.Random(0).shuffle(shuffled)
    out.parent.mkdir(parents=True, exist_ok=True)
    characters: Counter[str] = Counter()
    with out.open("w", encoding="utf-8", newline="") as file:
        for text in shuffled:
            file.write(text + SEPARATOR)
            characters.update(text)
    return characters


def bytes_by_script(characters: Counter[str]) -> Counter[str]:
    """The bytes of letters and marks of each script, by the first word of their Unicode names."""
    found: Counter[str] = Counter()
    for character, count in characters.items():
        is_letter = unicodedata.category(character)[0] in "LM"
        script = unicodedata.name(character, "?").split()[0] if is_letter else "no letters"
        found[script] += count * len(character.encode())
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--from", dest="source", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    chosen = parser.parse_args()
    scripts = bytes_by_script(write(chosen.out, documents(chosen.source)))
    sys.stdout.write(f"{chosen.out.stat().st_size / 1e6:.1f} MB of text in {chosen.out}\n\n")
    sys.stdout.write("| script | MB |\n|---|--:|\n")
    for script, size_bytes in scripts.most_common():
        if size_bytes >= 10_000:
            sys.stdout.write(f"| {script} | {size_bytes / 1e6:.2f} |\n")


if __name__ == "__main__":
    main()
