"""HTML around text: what pages need beyond SVG."""

from __future__ import annotations

import base64
import hashlib
import re

from lowtide.svg import escape


def isolated(text: str, most_bytes: int = 400) -> str:
    """Escaped text with a direction of its own: a name in Hebrew does not turn the sentence around it."""
    return f"<bdi>{escape(text, most_bytes)}</bdi>"


def coded(text: str, most_bytes: int = 400) -> str:
    """The beginning of a sentence, with code style for what stands between backquotes."""
    parts = re.split(r"`([^`]*)`", text[:most_bytes])
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
