"""Fills what the program says of itself into the reference: `python docs/make_reference.py`.

`reference.md`: the text between `<!-- help: NAME -->` and `<!-- end of help -->` is a command's own
`--help`; the rest of the page is written by hand. `python.md` is made as a whole, out of the docstrings of
`lowtide.__all__`.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Literal, get_args, get_origin

import click

import lowtide
from lowtide.cli.main import cli

REFERENCE = Path(__file__).with_name("reference.md")
PYTHON = Path(__file__).with_name("python.md")
_COLUMNS = 100
_BLOCK = re.compile(r"(<!-- help: ([\w -]+) -->\n).*?(<!-- end of help -->)", re.DOTALL)
_INTRODUCTION = """# Python

Examples, then every public name of `lowtide`, as its docstring tells it. `python docs/make_reference.py` writes
this page, and a test compares. More examples stand in the [reference](reference.md#python), and in the pages on
[tokenizers](tokenizer.md#from-python), [loading](loading.md) and [training](training.md#from-python).
Names are loaded when they are first used: `import lowtide` costs nothing.

## Examples

Settings are keywords, named like the flags. A progress bar is shown in a terminal and, with ipywidgets, in a
Jupyter notebook; `progress=False` shows none, and `listen=` takes the events instead. Results are plain values
with a short repr.

```python
import lowtide

texts = (f"line {number} of a text that nobody wrote down\\n" * 40 for number in range(500))
result = lowtide.tokenize(texts, "tokens", val=0.05, memory="512MiB")
print(repr(result))  # <TokenizeResult tokens: 202.7k tokens of 500 documents, 1.9s, peak 112.7 MiB>
```

### What is an input

| inputs | are |
|---|---|
| `"corpus/*.parquet"`, `Path("corpus")` | a path, as on the command line |
| `["a.txt", "b.txt"]`, any list or tuple of `str` | paths |
| any other iterable of `str`: a generator, `iter(texts)`, a column of a table | texts, each a document |
| an iterable of dicts: a list, a `datasets.Dataset` or `IterableDataset` | rows, as in a JSONL file |

```python
from datasets import Dataset

code = Dataset.from_dict({"code": ["print(1)", "print(2)"], "stars": [3, 5]})
lowtide.tokenize(code, "code", column="code")

turns = [{"role": "user", "content": "Ebb?"}, {"role": "assistant", "content": "At six."}]
lowtide.tokenize([{"messages": turns}], "chats", examples="chat", context=64)
```

- Tokens are those of the same rows in a JSONL file. Rows are asked for one at a time, in the thread that calls,
  so an endless stream takes no more memory than a file. What the iterable itself allocates counts towards the
  budget.
- Rows are read once. A call that was cut off cannot be resumed, and a finished folder cannot say whether it
  holds the same rows: both ask for `restart=True`. Where that matters, write the rows to a file.
- A stop is obeyed when the next row has come: an iterable that waits keeps the call waiting.
- An error that the iterable raises comes out as it is. A row that cannot be written as JSON (bytes, an array)
  is an error that names the row, counted from 1. A missing text, NaN or half of a surrogate pair is left to
  `bad_text`, as in a file.

### What follows

```python
from torch.utils.data import DataLoader

windows = lowtide.TokenDataset("tokens", context=64)
len(windows), windows[0]  # windows of an epoch, and the first: x and y
for x, y in DataLoader(windows, batch_size=8):
    break

lowtide.verify("tokens", progress=False).verification.sound
lowtide.report("tokens").path  # a page of the run
lowtide.why("tokens").sentence  # how it ended
```

```python
import sys

job = "import time; x = bytearray(b'1') * 10**8; time.sleep(1)"
watched = lowtide.watch([sys.executable, "-c", job], limit="1GB")
watched.end.exit_code, watched.peak_private_bytes  # 0, and about 100 MB
verdict = lowtide.why(watched.timeline)
verdict.sentence
for found in verdict.evidence:
    print(found.speaks, found.source, found.text)
```

`lowtide.compare("corpus", limit="512MiB")` runs the usual programs beside lowtide on a sample of the text, and
takes some minutes. With `out="compare.html"` it writes the command's tables to a page. The figures are in
`results`: of each its `program.name`, and in `whole` its `ending`, `seconds` and `peak_private_bytes`.
"""


def help_of(name: str) -> str:
    """What `lowtide NAME --help` prints on a terminal of 100 columns; `lowtide` alone is the group's."""
    command: click.Command = cli
    context = click.Context(cli, info_name="lowtide", **_settings())
    for word in name.split()[1:]:
        assert isinstance(command, click.Group)
        command = command.commands[word]
        context = click.Context(command, info_name=word, parent=context, **_settings())
    return command.get_help(context)


def fill(text: str) -> str:
    """The same page with every help block as the commands give it now."""
    return _BLOCK.sub(
        lambda found: f"{found[1]}```text\n{help_of(found[2])}\n```\n{found[3]}", text
    )


def python_page() -> str:
    """All of `python.md`: functions, then classes, each in the order of the alphabet."""
    public = {name: getattr(lowtide, name) for name in sorted(lowtide.__all__, key=str.lower)}
    functions = {name: one for name, one in public.items() if inspect.isfunction(one)}
    classes = {name: one for name, one in public.items() if inspect.isclass(one)}
    parts = [_INTRODUCTION, _links("Functions", functions), _links("Classes", classes)]
    parts += ["## Functions\n", *(_function(name, one) for name, one in functions.items())]
    parts += ["## Classes\n", *(_class(name, one) for name, one in classes.items())]
    return "\n".join(parts)


def _links(title: str, names: dict[str, object]) -> str:
    return f"{title}: " + ", ".join(f"[{name}](#{name.lower()})" for name in names) + "\n"


def _function(name: str, function: Callable[..., object]) -> str:
    return f"### {name}\n\n{_signature(f'lowtide.{name}', function)}\n{_told(function)}\n"


def _class(name: str, kind: type) -> str:
    parts = [f"### {name}\n"]
    if "__init__" in vars(kind) and not dataclasses.is_dataclass(kind):
        parts.append(_signature(f"lowtide.{name}", kind))
    parts.append(f"{_told(kind)}\n")
    listed = [*_fields(kind), *_properties(kind)]
    if listed:
        parts.append("\n".join(listed) + "\n")
    return "\n".join([*parts, *_methods(name, kind)])


def _fields(kind: type) -> Iterator[str]:
    """The fields of a dataclass, which it is made of by name, with what stands below each in the source."""
    if not dataclasses.is_dataclass(kind):
        return
    told = _docstrings_of_fields(kind)
    for field in dataclasses.fields(kind):
        value = "" if field.default is dataclasses.MISSING else f" = {field.default!r}"
        written = f"{field.name}: {_spelled(str(field.type), kind)}{value}"
        yield _item(written, told.get(field.name))


def _docstrings_of_fields(kind: type) -> dict[str, str]:
    tree = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    assert isinstance(tree, ast.ClassDef)
    found = {}
    for line, below in zip(tree.body, tree.body[1:], strict=False):
        is_field = isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name)
        if is_field and isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
            found[line.target.id] = inspect.cleandoc(str(below.value.value))
    return found


def _properties(kind: type) -> Iterator[str]:
    for name, one in vars(kind).items():
        if isinstance(one, property) and not name.startswith("_"):
            gives = str(inspect.signature(one.fget).return_annotation)
            yield _item(f"{name}: {_spelled(gives, kind)}", inspect.getdoc(one))


def _methods(owner: str, kind: type) -> Iterator[str]:
    for name, one in vars(kind).items():
        plain = one.__func__ if isinstance(one, classmethod | staticmethod) else one
        if inspect.isfunction(plain) and not name.startswith("_"):
            shown = _signature(f"{owner}.{name}", getattr(kind, name))
            yield f"#### {owner}.{name}\n\n{shown}\n{_told(plain)}\n"


def _item(name: str, told: str | None) -> str:
    words = f": {' '.join(told.split())}" if told else ""
    return f"- `{name}`{words}"


def _told(thing: object) -> str:
    """A docstring as Markdown: its examples in a fence, the rest as it stands."""
    text = inspect.cleandoc(getattr(thing, "__doc__", None) or "")
    parts = [
        f"```pycon\n{textwrap.dedent(part)}\n```" if part.lstrip().startswith(">>>") else part
        for part in text.split("\n\n")
    ]
    return "\n\n".join(parts)


def _signature(name: str, thing: Callable[..., object]) -> str:
    """As it would be written, on one line if it fits, without `self`."""
    signature = inspect.signature(thing)
    given = [one for one in signature.parameters.values() if one.name != "self"]
    written = [_parameter(one, thing) for one in given]
    kinds = [one.kind for one in given]
    if inspect.Parameter.KEYWORD_ONLY in kinds:
        written.insert(kinds.index(inspect.Parameter.KEYWORD_ONLY), "*")
    gives = signature.return_annotation
    arrow = "" if gives in (inspect.Signature.empty, "None", None) else f" -> {gives}"
    line = f"{name}({', '.join(written)}){arrow}"
    if len(line) > _COLUMNS:
        line = f"{name}(\n" + "".join(f"    {one},\n" for one in written) + f"){arrow}"
    return f"```python\n{line}\n```\n"


def _parameter(one: inspect.Parameter, owner: object) -> str:
    kind = _spelled(str(one.annotation), owner)
    if one.default is inspect.Parameter.empty:
        return f"{one.name}: {kind}"
    value = one.default
    if inspect.isfunction(value):
        shown = value.__name__
    else:
        shown = repr(dict(value) if isinstance(value, Mapping) else value)
    return f"{one.name}: {kind} = {shown}"


def _spelled(annotation: str, owner: object) -> str:
    """The annotation with the words that a name such as `Format` stands for, where those are all it allows."""
    module = sys.modules[getattr(owner, "__module__", "builtins")]

    def values(found: re.Match[str]) -> str:
        kind = getattr(module, found[0], None)
        return " | ".join(map(repr, get_args(kind))) if get_origin(kind) is Literal else found[0]

    return re.sub(r"\b[A-Z]\w+", values, annotation)


def _settings() -> dict[str, object]:
    return {"terminal_width": _COLUMNS, "help_option_names": ["-h", "--help"]}


if __name__ == "__main__":
    REFERENCE.write_text(fill(REFERENCE.read_text()))
    PYTHON.write_text(python_page())
