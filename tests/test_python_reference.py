"""The page of the Python names is what the docstrings say, and every public name says something."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

import lowtide
from tests.test_docs import load

DOCS = Path(__file__).parent.parent / "docs"
PUBLIC = sorted(set(lowtide.__all__) - {"__version__"})


def test_the_page_of_the_python_names_is_made_of_their_docstrings() -> None:
    made = load(DOCS / "make_reference.py").python_page()
    assert made == (DOCS / "python.md").read_text(), "run `python docs/make_reference.py`"


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_has_a_place_and_a_docstring(name: str) -> None:
    page = (DOCS / "python.md").read_text()
    section = page.partition(f"\n### {name}\n")[2].partition("\n### ")[0]
    told = inspect.cleandoc(getattr(lowtide, name).__doc__ or "").splitlines()[0]
    assert told
    assert told in section


@pytest.mark.parametrize("name", PUBLIC)
def test_everything_that_a_public_class_can_do_has_a_docstring(name: str) -> None:
    public = getattr(lowtide, name)
    for part, one in vars(public).items() if inspect.isclass(public) else ():
        if not part.startswith("_") and (callable(one) or isinstance(one, property | classmethod)):
            assert inspect.getdoc(getattr(public, part)), f"{name}.{part}"
