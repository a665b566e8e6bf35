"""Text into HTML. Whatever a log holds, a browser shows it as text and does nothing else with it."""

from __future__ import annotations

import base64
import hashlib
import html
import re

_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff0-\uffff\ud800-\udfff]"
)
"""Control characters, those that turn the direction of what follows, and those that no file may hold."""
_CUT = " …"


def escape(text: str, most_bytes: int = 400) -> str:
    """The text, or its beginning, as HTML of at most `most_bytes`. Holds for quoted attributes too."""
    whole = _escaped(text[:most_bytes])
    if len(text) <= most_bytes and len(whole.encode()) <= most_bytes:
        return whole
    room, parts = most_bytes - len(_CUT.encode()), []
    for character in text:
        part = _escaped(character)
        room -= len(part.encode())
        if room < 0:
            break
        parts.append(part)
    return "".join(parts) + _CUT


def isolated(text: str, most_bytes: int = 400) -> str:
    """The same, with a direction of its own: a name in Hebrew does not turn the sentence around it."""
    return f"<bdi>{escape(text, most_bytes)}</bdi>"


def coded(text: str, most_bytes: int = 400) -> str:
    """A sentence of ours: what stands between backquotes is set as code."""
    parts = re.split(r"`([^`]*)`", text)
    return "".join(
        f"<code>{escape(part, most_bytes)}</code>" if n % 2 else escape(part, most_bytes)
        for n, part in enumerate(parts)
    )


def source_hash(text: str) -> str:
    """How a content-security policy names an inlined style or script."""
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def embedded_json(text: str) -> str:
    """JSON that may stand inside a script element."""
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _escaped(text: str) -> str:
    return html.escape(_UNSAFE.sub(lambda found: _named(found[0]), text), quote=True)


def _named(character: str) -> str:
    """`\\u202e` for what cannot be shown."""
    return f"\\u{ord(character):04x}"
