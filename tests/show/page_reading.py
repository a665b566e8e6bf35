"""Reads a page as a browser would, without one."""

from __future__ import annotations

from collections.abc import Iterable
from html.parser import HTMLParser
from pathlib import Path

from lowtide.show.page.write_page import write_page
from tests.show.page_journals import Record, write_log

_FRAME = "html head meta link title style script body header main footer section svg path rect text"
_PARTS = "h1 h2 h3 p strong b bdi code span div dl dt dd ul ol li figure figcaption button output"
_TABLES = "details summary table thead tbody tr th td"
TAGS = {tag for part in (_FRAME, _PARTS, _TABLES) for tag in part.split()}
"""All that a page is made of; whatever else a parser finds came out of the log."""


class Page(HTMLParser):
    """What a browser would make of it: elements, attributes and text."""

    def __init__(self, content: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.inside: list[str] = []
        self.text = ""
        self.sources: dict[str, list[str]] = {"style": [], "script": []}
        self.feed(content)
        self.close()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attributes}))
        self.inside.append(tag)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attributes}))

    def handle_endtag(self, tag: str) -> None:
        while self.inside and self.inside.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        holder = self.inside[-1] if self.inside else ""
        if holder in self.sources:
            self.sources[holder].append(data)
        else:
            self.text += data

    def of(self, tag: str, name: str = "") -> list[dict[str, str]]:
        return [
            attributes
            for found, attributes in self.elements
            if found == tag and name in ("", *attributes.get("class", "").split())
        ]


def make(folder: Path, records: Iterable[Record], name: str = "run") -> tuple[str, Page]:
    write_log(folder / name / "log.jsonl", records)
    content = write_page(folder / name).path.read_text(encoding="utf-8")
    return content, Page(content)
