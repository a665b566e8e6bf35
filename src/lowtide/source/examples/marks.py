"""Private spellings, made of characters that Unicode promises never to assign (U+FDD0 to U+FDD9).

    U+FDD0              stands between names where several are searched at once
    U+FDD1 7 U+FDD2     the special token number 7, where the template wrote it; stays in a block's text
    U+FDD3 to U+FDD7    stand in contents for a character of a special token's name, or of a part of one,
                        while a Jinja template renders: only names which the template wrote are found
    U+FDD8 … U+FDD9     what is learnt; taken out before the text leaves the room

A row whose own text holds one of them is a bad row, so a mark is always ours.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

LEARNT_OPEN = "\ufdd8"
LEARNT_CLOSE = "\ufdd9"
RESERVED = re.compile("[\ufdd0-\ufdd9]")
NO_NAME = "\ufdd0"
STAND_INS = "\ufdd3\ufdd4\ufdd5\ufdd6"
LONG_STAND_IN = "\ufdd7"
"""Opens and closes the stand-in of a fifth, sixth, … character: there are names for all."""

_MARK_OPEN, _MARK_CLOSE = "\ufdd1", "\ufdd2"
MARK = re.compile(f"({_MARK_OPEN}[0-9]+{_MARK_CLOSE})")


def mark_of(number: int) -> str:
    """How the special token of a number is spelt in a block's text."""
    return f"{_MARK_OPEN}{number}{_MARK_CLOSE}"


def assign_marks(special_tokens: Mapping[str, int]) -> dict[str, str]:
    """The mark of each special token, by name. Numbered in the order of their ids (then names)."""
    in_order = sorted(special_tokens, key=lambda name: (special_tokens[name], name))
    return {name: mark_of(number) for number, name in enumerate(in_order) if name}


def reserved_in(text: str) -> str | None:
    """Which reserved character a text holds, as `U+FDD0`; None: none."""
    found = RESERVED.search(text)
    return f"U+{ord(found.group()):04X}" if found else None
