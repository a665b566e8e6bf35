"""Write the table of code points by which words are cut, anew, as the installed `tokenizers` knows them.

    python bench/make_classes.py            3 seconds; writes src/lowtide/tokenizer/data/unicode16_classes.txt
    python bench/make_classes.py --check    only compares, and exits 1 where the file says otherwise

`tokenizers` is asked, one question for each bit of a class, which code points an expression matches.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    sys.path[:1] = []  # a file beside this one is called like a standard module, and would hide it

import argparse
from pathlib import Path

import numpy as np
import numpy.typing as npt
import tokenizers
from tokenizers import Regex, pre_tokenizers

from lowtide.tokenizer.split_words import (
    CLASS_EXPRESSIONS,
    CLASS_LETTERS,
    CODE_POINTS,
    load_classes,
)

PATH = Path(__file__).parents[1] / "src/lowtide/tokenizer/data/unicode16_classes.txt"
HEADER = """\
# The class of every code point in Unicode 16. A line holds for all code points up to the next line's:
# . none  S white space  N number  U upper or title case  L lower case  C letter without case  M mark
"""
_SURROGATES = range(0xD800, 0xE000)
_SLICE_CHARACTERS = 4096  # in longer texts the offsets of `tokenizers` cost more


def ask(expression: str, code_points: range) -> npt.NDArray[np.bool_]:
    """For each of the code points, whether `tokenizers` says that the expression matches it."""
    matches = np.ones(len(code_points), dtype=bool)
    others = pre_tokenizers.Split(Regex(f"(?:{expression})+"), "removed")
    for begin in range(0, len(code_points), _SLICE_CHARACTERS):
        text = "".join(map(chr, code_points[begin : begin + _SLICE_CHARACTERS]))
        for _, (first, end) in others.pre_tokenize_str(text):
            matches[begin + first : begin + end] = False
    return matches


def ask_classes() -> npt.NDArray[np.uint8]:
    """The class of every code point. Surrogates, which no text holds, have none."""
    classes = np.zeros(CODE_POINTS, dtype=np.uint8)
    for part in (range(_SURROGATES.start), range(_SURROGATES.stop, CODE_POINTS)):
        for bit, expression in CLASS_EXPRESSIONS.items():
            classes[part.start : part.stop] |= np.where(ask(expression, part), bit, 0).astype(
                np.uint8
            )
    return classes


def spell(classes: npt.NDArray[np.uint8]) -> str:
    """The data file: a line for each code point whose class is not that of the one before."""
    letters = {bits: letter for letter, bits in CLASS_LETTERS.items()}
    begins = [0, *(np.flatnonzero(np.diff(classes)) + 1)]
    return HEADER + "".join(f"{begin:X} {letters[int(classes[begin])]}\n" for begin in begins)


def main() -> int:
    parser = argparse.ArgumentParser(description="the table of code points by which words are cut")
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    found = ask_classes()
    if parser.parse_args().check:
        differing = np.flatnonzero(found != load_classes())
        print(f"{len(differing)} code points differ from tokenizers {tokenizers.__version__}")
        return 1 if len(differing) else 0
    PATH.write_text(spell(found), "ascii")
    print(f"wrote {PATH.stat().st_size:,} bytes, as tokenizers {tokenizers.__version__} has it")
    return 0


if __name__ == "__main__":
    sys.exit(main())
