"""The names of special tokens: what the template wrote becomes marks, what contents hold follows the policy."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

from lowtide.source.examples.marks import (
    LONG_STAND_IN,
    STAND_INS,
    assign_marks,
    reserved_in,
)
from lowtide.source.examples.turns import BadExampleError

SpecialInText: TypeAlias = Literal["text", "token", "fail"]

_RESERVED_BEGINS = "\ufdd0".encode()[:2]
"""How the UTF-8 of every reserved character begins."""


class SpecialNames:
    """All special tokens of a tokenizer, ready to be looked for."""

    def __init__(self, special_tokens: Mapping[str, int], policy: SpecialInText) -> None:
        self.policy = policy
        self._marks = assign_marks(special_tokens)
        longest_first = sorted(self._marks, key=lambda name: (-len(name), name))
        self._pattern = re.compile("|".join(map(re.escape, longest_first)))
        self._beginnings = sorted({name[:2] for name in self._marks})
        firsts = sorted({name[0] for name in self._marks})
        self._stand_in = {first: _stand_in(number) for number, first in enumerate(firsts)}
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
        """Where names begin and end."""
        if not self._may_occur_in(text):
            return []
        return [found.span() for found in self._pattern.finditer(text)]

    def hide(self, text: str) -> str:
        """The text with no name in it: of each the first character is swapped."""
        while self.occur_in(text):  # a name may overlap another, and show when that is hidden
            text = self._pattern.sub(
                lambda found: self._stand_in[found.group()[0]] + found.group()[1:], text
            )
        return text

    def show(self, text: str) -> str:
        """The text from before `hide`."""
        return self._stand_ins.sub(lambda found: self._swap_back[found.group()], text)

    def check(self, text: str) -> None:
        """Refuse a content that holds a reserved character, or a name where the policy forbids it."""
        if not text.isascii() and (reserved := reserved_in(text)):
            raise BadExampleError(f"holds {reserved}, which lowtide uses as a mark")
        if self.policy == "fail" and self.occur_in(text):
            name = self._pattern.findall(text)[0]
            raise BadExampleError(f"holds the special token {name!r} in a text")

    def content_bytes(self, text: str) -> bytes:
        """A content as it goes into a block, by the policy."""
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


def _stand_in(number: int) -> str:
    if number < len(STAND_INS):
        return STAND_INS[number]
    return f"{LONG_STAND_IN}{number}{LONG_STAND_IN}"
