"""The names of special tokens, and private marks that stand for them.

What a template wrote becomes marks; what contents hold follows the policy. Marks are made of characters that
Unicode promises never to assign (U+FDD0 to U+FDD9):

    U+FDD0              stands between names where several are searched at once
    U+FDD1 7 U+FDD2     the special token number 7, where the template wrote it; stays in a block's text
    U+FDD3 to U+FDD7    stand in contents for a character of a special token's name, or of a part of one,
                        while a Jinja template renders: only names which the template wrote are found
    U+FDD8 … U+FDD9     begin and end of what is learnt; removed before the text leaves the package

A row whose own text holds one of them is a bad row, so a mark is always ours.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

from lowtide.settings import SpecialInText
from lowtide.source.examples.turns import BadExampleError

LEARNT_OPEN = "\ufdd8"
LEARNT_CLOSE = "\ufdd9"
_RESERVED = re.compile("[\ufdd0-\ufdd9]")
_NO_NAME = "\ufdd0"
_STAND_INS = "\ufdd3\ufdd4\ufdd5\ufdd6"
_LONG_STAND_IN = "\ufdd7"
"""Opens and closes the stand-in of a fifth, sixth, … character: there are names for all."""

_MARK_OPEN, _MARK_CLOSE = "\ufdd1", "\ufdd2"
MARK = re.compile(f"({_MARK_OPEN}[0-9]+{_MARK_CLOSE})")


_RESERVED_BEGINS = "\ufdd0".encode()[:2]
"""The first bytes of every reserved character in UTF-8."""


def mark_of(number: int) -> str:
    """How a block's text spells the special token of that number."""
    return f"{_MARK_OPEN}{number}{_MARK_CLOSE}"


def assign_marks(special_tokens: Mapping[str, int]) -> dict[str, str]:
    """The mark of each special token, by name. Numbered in the order of their ids (then names)."""
    in_order = sorted(special_tokens, key=lambda name: (special_tokens[name], name))
    return {name: mark_of(number) for number, name in enumerate(in_order) if name}


def reserved_in(text: str) -> str | None:
    """Which reserved character a text holds, as `U+FDD0`; None: none."""
    found = _RESERVED.search(text)
    return f"U+{ord(found.group()):04X}" if found else None


class SpecialNames:
    """Finds the special tokens of a tokenizer in texts, and hides or marks them."""

    def __init__(self, special_tokens: Mapping[str, int], policy: SpecialInText) -> None:
        self.policy = policy
        self._marks = assign_marks(special_tokens)
        longest_first = sorted(self._marks, key=lambda name: (-len(name), name))
        self._pattern = re.compile("|".join(map(re.escape, longest_first)))
        self._beginnings = sorted({name[:2] for name in self._marks})
        firsts = sorted({name[0] for name in self._marks})
        characters = sorted({*"".join(self._marks)} - {*firsts})
        self._stand_in = {each: _stand_in(n) for n, each in enumerate([*firsts, *characters])}
        self._ends = _NameEnds(self._marks)
        self.can_be_completed = self._ends.may_be_in
        """Whether text beside a content could complete its end or its beginning to a name."""
        self._swap_back = {stand_in: first for first, stand_in in self._stand_in.items()}
        self._stand_ins = re.compile("|".join(map(re.escape, self._swap_back)) or r"(?!)")

    def occur_in(self, text: str) -> bool:
        """Whether the text holds a name."""
        return self._may_occur_in(text) and self._pattern.search(text) is not None

    def to_marks(self, text: str) -> str:
        """The text with every name as its mark."""
        if not self._may_occur_in(text):
            return text
        return self._pattern.sub(lambda found: self._marks[found.group()], text)

    def places(self, text: str) -> list[tuple[int, int]]:
        """Begin and end of each name in the text."""
        if not self._may_occur_in(text):
            return []
        return [found.span() for found in self._pattern.finditer(text)]

    def hide(self, text: str) -> str:
        """The text without names: the first character of each is swapped."""
        while self.occur_in(text):  # a name may overlap another, and show when that is hidden
            text = self._pattern.sub(
                lambda found: self._stand_in[found.group()[0]] + found.group()[1:], text
            )
        return text

    def hide_ends(self, content: str) -> str:
        """The content without parts of names at its ends; whole names, hidden or not, stay."""
        inside = {i for begin, end in self.places(content) for i in range(begin, end)}
        characters = list(content)
        for position in self._ends.positions(content) - inside:
            characters[position] = self._stand_in.get(content[position], content[position])
        return "".join(characters)

    def show(self, text: str) -> str:
        """The text from before `hide` and `hide_ends`."""
        return self._stand_ins.sub(lambda found: self._swap_back[found.group()], text)

    def check(self, text: str) -> None:
        """Refuse a content that holds a reserved character, or a name where the policy forbids it."""
        if not text.isascii() and (reserved := reserved_in(text)):
            raise BadExampleError(f"holds {reserved}, which lowtide uses as a mark")
        if self.policy == "fail" and self.occur_in(text):
            name = self._pattern.findall(text)[0]
            raise BadExampleError(f"holds the special token {name!r} in a text")

    def content_bytes(self, text: str) -> bytes:
        """A content as a block holds it, by the policy."""
        encoded = text.encode()
        if self.policy != "text" or _RESERVED_BEGINS in encoded:
            self.check(text)
        return self.to_marks(text).encode() if self.policy == "token" else encoded

    def _may_occur_in(self, text: str) -> bool:
        """A quick look: `in` is a hundred times as fast as the pattern."""
        for beginning in self._beginnings:  # noqa: SIM110 - `any` would take twice the time
            if beginning in text:
                return True
        return False

    def is_harmless(self, texts: Sequence[str]) -> bool:
        """Whether a quick look at all texts of a row finds nothing to check or to hide."""
        joined = "\n".join(texts)
        return joined.isascii() and not self._may_occur_in(joined)


class _NameEnds:
    """The beginnings and ends of names, as they may be left at the ends of a content.

    White space around a content is not looked at: a template may take it away.
    """

    def __init__(self, names: Collection[str]) -> None:
        self._names = _NO_NAME.join(names)
        cuts = [(name[:i], name[i:]) for name in names for i in range(1, len(name))]
        self._prefixes = frozenset(prefix for prefix, _ in cuts)
        self._suffixes = frozenset(suffix for _, suffix in cuts)
        self._firsts = sorted({prefix[0] for prefix in self._prefixes})
        self._lasts = sorted({suffix[-1] for suffix in self._suffixes})
        self._longest = max(map(len, self._prefixes), default=0)

    def may_be_in(self, content: str) -> bool:
        """Whether there are any `positions`; a quick look first."""
        longest = self._longest
        bare = content.strip()
        if len(bare) > longest:
            tail, head = bare[-longest:], bare[:longest]
            for first in self._firsts:
                if first in tail:
                    break
            else:
                for last in self._lasts:
                    if last in head:
                        break
                else:
                    return False
        return bool(self.positions(content))

    def positions(self, content: str) -> set[int]:
        """Which characters to swap, so that no name can take in any of the content's."""
        bare = content.strip()
        begin = content.find(bare)
        found: set[int] = set()
        for size in range(1, min(self._longest, len(bare)) + 1):
            if bare[-size:] in self._prefixes:
                found.add(begin + len(bare) - size)
            if bare[:size] in self._suffixes:
                found.add(begin + size - 1)
        if bare and not found and bare in self._names:
            found.add(begin)
        return found


def _stand_in(number: int) -> str:
    if number < len(_STAND_INS):
        return _STAND_INS[number]
    return f"{_LONG_STAND_IN}{number}{_LONG_STAND_IN}"
