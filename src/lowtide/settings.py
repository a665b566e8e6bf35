"""One declaration for each setting. From it follow the flag with its help and group, the key of `lowtide.toml`,
the line of `lowtide config`, the keyword in Python, the check of its choices, and the stored record.

    bad_text: BadText = setting("fail", help="What to do with text that is not UTF-8.", group="input")

Nothing heavy is imported here: `--help` reads these declarations.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Literal,
    ParamSpec,
    TypeAlias,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from lowtide.errors import UsageError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Format: TypeAlias = Literal["npy", "nanogpt", "llmc", "megatron"]
Placement: TypeAlias = Literal["end", "start", "none"]
"""Where a document's end-of-text token stands."""
SplitRule: TypeAlias = Literal["hash", "tail"]
InputFormat: TypeAlias = Literal["text", "jsonl", "parquet", "arrow"]
BadText: TypeAlias = Literal["fail", "replace", "skip"]
SpecialInText: TypeAlias = Literal["text", "token", "fail"]
ExampleKind: TypeAlias = Literal["chat", "instruction", "completion"]
Learn: TypeAlias = Literal["assistant", "all", "completion"]
"""Every turn of the assistant, everything, or the assistant's last turn alone."""
TooLong: TypeAlias = Literal["split", "truncate", "skip"]
PatternName: TypeAlias = Literal["gpt2", "cl100k", "o200k"]
Ties: TypeAlias = Literal["huggingface", "greatest"]
"""Of the pairs with the highest count: the smallest ids, or the lexicographically greatest bytes."""
Recipe: TypeAlias = Literal["fast", "lean", "leanest"]
Device: TypeAlias = Literal["cuda", "cpu"]

Group = Literal[
    "input", "vocabulary", "model", "training", "examples", "output", "memory", "machine", "run"
]
"""The section of `--help`."""
Kind = Literal[
    "text",
    "count",
    "number",
    "share",
    "sizes",
    "seed",
    "size",
    "size or share",
    "file",
    "folder",
    "tokenizer",
    "switch",
    "choice",
]
"""How the value is written."""
Chosen: TypeAlias = Mapping[str, object]

SETTINGS_NAME = "lowtide.toml"
"""Defaults of the commands in the current folder; in an inbox, how its files are read."""
INBOX_NAMES = (
    *("examples", "template", "learn", "too_long", "context", "column", "separator"),
    *("tokenizer", "bad_text", "special_in_text", "val"),
)
"""The settings of `tokenize` that an inbox's file may set, in the order in which runs have stored them."""
DEFAULT_VAL = 0.0005
"""The share that is held out of many documents."""
END_OF_TEXT = "<|endoftext|>"

_P = ParamSpec("_P")
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What is declared of a setting; its name and what follows from its type are found later."""

    help: str
    group: Group
    kind: Kind = "text"
    """How the value is written. Literals are choices and bools are switches without being declared so."""
    takes: str | None = None
    """What `--help` shows in place of the value, such as NAME."""
    shown: str | None = None
    """The default as a person would type it."""
    left_open: str | None = None
    """What is chosen where the default is None, in words."""
    sample: object = None
    """A value for `lowtide config`, where there is no fixed default."""
    milder: bool = False
    """Whether "fail" may become another value, and a limit a larger one, when a run is resumed."""
    gives_way_to: tuple[str, ...] = ()
    """Flags that contradict it: beside one of them the value in `lowtide.toml` is not used."""
    used_if: Callable[[Chosen], bool] | None = None
    """Whether it has a meaning beside the other values; elsewhere the value in `lowtide.toml` is not used."""
    command_line_only: str | None = None
    """Why it may not stand in `lowtide.toml`."""
    name: str = ""
    default: object = None
    choices: tuple[str, ...] = ()
    """Empty where any value may stand."""
    is_many: bool = False
    """Whether it takes several values."""

    @property
    def flag(self) -> str:
        """Its name on the command line."""
        return f"--{self.name.replace('_', '-')}"


def _declaring(declare: Callable[_P, Setting]) -> Callable[Concatenate[_T, _P], _T]:
    def setting(default: _T, /, *given: _P.args, **named: _P.kwargs) -> _T:
        found: _T = field(default=default, metadata={"setting": declare(*given, **named)})
        return found

    return setting


setting = _declaring(Setting)
"""Declare a field of a settings class: its default, and what `Setting` has."""


def declared_settings(of: type[DataclassInstance]) -> tuple[Setting, ...]:
    """The settings that a class declares, in their order."""
    hints = get_type_hints(of)
    found = []
    for one in fields(of):
        if "setting" in one.metadata:
            declared: Setting = one.metadata["setting"]
            parts = _parts_of(hints[one.name])
            literal = next((part for part in parts if get_origin(part) is Literal), None)
            kind: Kind = "switch" if bool in parts else declared.kind
            found.append(
                replace(
                    declared,
                    kind=kind if literal is None else "choice",
                    name=one.name,
                    default=one.default,
                    choices=() if literal is None else get_args(literal),
                    is_many=any(get_origin(part) is tuple for part in parts),
                )
            )
    return tuple(found)


def _parts_of(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def check_choices(declared: Iterable[Setting], values: Chosen) -> None:
    """UsageError for a value that is not one of its setting's choices."""
    for one in declared:
        value = values.get(one.name)
        if one.choices and value is not None and value not in one.choices:
            raise UsageError(
                f"{one.name.replace('_', '-')} cannot be {value!r}",
                remedy=f"choose one of {', '.join(one.choices)}",
                setting=one.name,
            )


def refuse_unknown(of: type[DataclassInstance], names: Iterable[str]) -> None:
    """UsageError for a keyword that is not a setting of the class, with the one that was meant."""
    known = [one.name for one in declared_settings(of)]
    for name in names:
        if name not in known:
            meant = nearest(name, known)
            raise UsageError(
                f"{name} is not a setting",
                remedy=f"did you mean {meant}?" if meant else f"there are {', '.join(known)}",
            )


def nearest(wrong: str, known: Iterable[str], *, likeness: float = 0.6) -> str | None:
    """The known name that was most likely meant, if one is at least so like it; 1 is equal."""
    from difflib import get_close_matches

    names = {name.replace("_", "-"): name for name in known}
    meant = wrong.replace("_", "-").lower()
    begin = [name for name in names if len(meant) > 2 and name.startswith(meant)]
    found = next(iter([*get_close_matches(meant, names, 1, likeness), *begin]), None)
    return found and names[found]


_SEPARATOR_HELP = (
    "What separates documents in text files: file, line, blank-line, or a literal such as "
    "'<|endoftext|>'."
)
_INPUT_FORMAT_HELP = "How every INPUT is read, whatever its name."
_BAD_TEXT_HELP = "What to do with text that is not valid UTF-8, and with rows without text."


def _reads_examples(chosen: Chosen) -> bool:
    return chosen["examples"] is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizeSettings:
    """The resolved settings of `tokenize`, as they are stored with its output.

    Each is the flag of `lowtide tokenize` that has its name, with the same default.
    """

    tokenizer: str = setting(
        "gpt2",
        help="gpt2, cl100k_base, o200k_base, a tokenizer.json, a folder with one, or a .tiktoken file.",
        group="input",
        kind="tokenizer",
        takes="NAME|PATH",
    )
    column: str | None = setting(
        None,
        help="Column with the text; with --examples messages=NAME,role=NAME,content=NAME.",
        group="input",
        takes="NAME",
        left_open="text",
        sample="text",
    )
    separator: str = setting(
        "file",
        help=_SEPARATOR_HELP,
        group="input",
        takes="TEXT",
        gives_way_to=("examples",),
    )
    input_format: InputFormat | None = setting(
        None,
        help=_INPUT_FORMAT_HELP,
        group="input",
        left_open="as the name says",
        sample="text",
    )
    format: Format = setting("npy", help="Layout of the shards.", group="output")
    shard_tokens: int = setting(
        100_000_000, help="Tokens in a full shard.", group="output", kind="count", shown="100M"
    )
    val: float | None = setting(
        None,
        help="Share held out for validation.",
        group="output",
        kind="share",
        left_open="0.0005 of the documents; of a single document its last tenth, at most 1 MB, or "
        "nothing below 100 kB",
        sample=0.05,
    )
    split: SplitRule | None = setting(
        None,
        help="Hold out documents by a hash of their text, or the tail of the data.",
        group="output",
        left_open="hash; tail for a single document",
        sample="tail",
    )
    eot: Placement | None = setting(
        None,
        help="Place of the end-of-text token.",
        group="output",
        left_open="end; start for llmc; none for examples",
        sample="end",
    )
    eot_token: str | None = setting(
        None,
        help="The end-of-text token by name.",
        group="output",
        takes="TEXT",
        left_open="<|endoftext|>, </s> or another usual one",
        sample=END_OF_TEXT,
        used_if=lambda chosen: chosen["eot"] != "none" or _reads_examples(chosen),
    )
    bad_text: BadText = setting(
        "fail",
        help=_BAD_TEXT_HELP,
        group="input",
        milder=True,
    )
    max_bad: int | None = setting(
        None,
        help="Stop if more documents or rows than this are left out because of their text.",
        group="input",
        kind="count",
        left_open="no limit",
        sample=1000,
        milder=True,
    )
    special_in_text: SpecialInText = setting(
        "text",
        help="How to read a special token's name inside a document.",
        group="input",
        milder=True,
    )
    examples: ExampleKind | None = setting(
        None,
        help="Rows are examples of this kind, to fine-tune on.",
        group="examples",
        sample="chat",
    )
    template: str | None = setting(
        None,
        help="chatml, plain, or a Jinja chat template.",
        group="examples",
        kind="file",
        takes="NAME|FILE",
        left_open="chatml; plain for completion",
        sample="chatml",
        used_if=_reads_examples,
    )
    learn: Learn | None = setting(
        None,
        help="Learn every answer, everything, or the last answer alone.",
        group="examples",
        left_open="assistant",
        sample="assistant",
        used_if=_reads_examples,
    )
    too_long: TooLong | None = setting(
        None,
        help="What to do with a longer example.",
        group="examples",
        left_open="split",
        sample="split",
        used_if=_reads_examples,
    )
    context: int | None = setting(
        None,
        help="Most tokens of an example.",
        group="examples",
        kind="count",
        left_open="1024",
        sample=1024,
        used_if=_reads_examples,
    )
    template_text: str | None = None
    """The template itself, filled in when it is loaded: a file that changes is a setting that does."""
    template_tokens: str | None = None
    """The special tokens that the template was given by name, as JSON; filled in with it."""

    @property
    def placement(self) -> Placement:
        """Where the end-of-text token stands."""
        return self.eot or ("none" if self.examples else "end")

    @property
    def held_out_share(self) -> float:
        """The share held out for validation."""
        return DEFAULT_VAL if self.val is None else self.val

    @property
    def split_rule(self) -> SplitRule:
        """Which share is held out."""
        return self.split or "hash"

    @property
    def text_column(self) -> str:
        """The column that holds the text."""
        return "text" if self.column is None else self.column

    def as_record(self) -> dict[str, str | int | float]:
        """Plain values under their names, for the manifest and for comparing two runs.

        What only examples have is left out where there are none.
        """
        named = asdict(self) | {
            "eot": self.placement,
            "val": self.held_out_share,
            "split": self.split_rule,
        }
        if self.examples is None:
            named["column"] = self.text_column
        return {name: value for name, value in named.items() if value is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerSettings:
    """The resolved settings of `train-tokenizer`, as they are stored with its output.

    Each is the flag of `lowtide train-tokenizer` that has its name, with the same default.
    """

    vocab_size: tuple[int, ...] = setting(
        (32_000,),
        help="Tokens to learn, special ones and the 256 bytes included. A few sizes cost little more than the "
        "largest.",
        group="vocabulary",
        kind="sizes",
        takes="N[,N...]",
        shown="32000",
    )
    special_token: tuple[str, ...] = setting(
        (END_OF_TEXT,),
        help="A token of its own that no merge crosses; repeatable.",
        group="vocabulary",
        takes="TEXT",
        left_open=END_OF_TEXT,
        sample=[END_OF_TEXT],
        gives_way_to=("no_special_token",),
    )
    pattern: PatternName = setting(
        "gpt2", help="How text is cut into words, which no merge crosses.", group="vocabulary"
    )
    min_frequency: int = setting(
        1,
        help="A pair is merged only if it occurs at least this often.",
        group="vocabulary",
        kind="count",
        takes="N",
    )
    ties: Ties = setting(
        "huggingface",
        help="Which of two equally frequent pairs is merged first: smallest ids, or greatest bytes.",
        group="vocabulary",
    )
    column: str = setting("text", help="Column with the text.", group="input", takes="NAME")
    separator: str = setting(
        "file",
        help=_SEPARATOR_HELP,
        group="input",
        takes="TEXT",
    )
    input_format: InputFormat | None = setting(
        None,
        help=_INPUT_FORMAT_HELP,
        group="input",
        left_open="as the name says",
        sample="text",
    )
    bad_text: BadText = setting(
        "fail",
        help=_BAD_TEXT_HELP,
        group="input",
        milder=True,
    )
    val: float = setting(
        0.0,
        help="Share of documents not to learn from, by the same hash as tokenize.",
        group="input",
        kind="share",
    )

    def as_record(self) -> dict[str, object]:
        """Plain values under their names, for the manifest and for comparing two runs."""
        named = {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in asdict(self).items()
        }
        return {name: value for name, value in named.items() if value is not None}

    @property
    def most_merges(self) -> int:
        """Merges that the largest vocabulary has room for."""
        return max(self.vocab_size) - 256 - len(self.special_token)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerName:
    """What names the tokenizer of files that do not name it themselves."""

    tokenizer: str | None = setting(
        None,
        help="Tokenizer of a peer's files, which do not name it.",
        group="input",
        kind="tokenizer",
        takes="NAME|PATH",
        sample="gpt2",
        gives_way_to=("inbox",),
        used_if=lambda chosen: chosen.get("to_format") != "huggingface",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequest(TokenizerName):
    """What `plan` and `train` are both asked for; None leaves it open."""

    model: str | None = setting(
        None,
        help="Model, such as gpt2 or gpt2-medium.",
        group="model",
        takes="NAME",
        left_open="what `lowtide plan` recommends",
        sample="gpt2",
        gives_way_to=("plan", "init"),
    )
    context: int | None = setting(
        None,
        help="Tokens in a window.",
        group="model",
        kind="count",
        left_open="1024",
        sample=1024,
        gives_way_to=("plan", "init"),
    )
    batch_tokens: int | None = setting(
        None,
        help="Tokens of one step.",
        group="training",
        kind="count",
        left_open="by size",
        sample="500k",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest(ModelRequest):
    """What `plan` is asked for. Each is the flag that has its name."""

    gpu: str | None = setting(
        None,
        help="Card to plan for, such as 'RTX 4070'.",
        group="machine",
        takes="NAME",
        left_open="the one found here",
        sample="RTX 4070",
    )
    vram: str | None = setting(
        None,
        help="Memory of the card, such as 12GiB.",
        group="machine",
        kind="size",
        takes="SIZE",
        sample="12GiB",
    )
    hours: float | None = setting(
        None,
        help="Hours available: the largest model that finishes in them.",
        group="training",
        kind="number",
        takes="N",
        sample=24,
    )
    tokens: int | None = setting(
        None,
        help="Tokens to train on.",
        group="training",
        kind="count",
        left_open="20 for each parameter",
        sample="1B",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainRequest(ModelRequest):
    """What `train` is asked for beside DATA and RUN. Each is the flag that has its name."""

    inbox: str | None = setting(
        None,
        help="Train on files as they appear there, without DATA.",
        group="input",
        kind="folder",
        takes="FOLDER",
        sample="batches",
        gives_way_to=("data",),
    )
    until_empty: bool = setting(
        False,
        help="With --inbox: end when no whole file is left.",
        group="input",
        used_if=lambda chosen: chosen["inbox"] is not None,
    )
    plan: str | None = setting(
        None,
        help="Settings that `lowtide plan --write` wrote.",
        group="model",
        kind="file",
        takes="FILE",
        sample="plan.toml",
        gives_way_to=("init",),
    )
    init: str | None = setting(
        None,
        help="Start from the weights of a run or of GPT-2.",
        group="model",
        kind="folder",
        takes="RUN|HF_DIR",
        sample="pretrained",
        gives_way_to=("plan",),
    )
    epochs: float | None = setting(
        None,
        help="Passes over the data.  [with --init: 3]",
        group="training",
        kind="number",
        takes="N",
        sample=3,
        gives_way_to=("steps",),
    )
    steps: int | None = setting(
        None,
        help="Steps of the whole run.",
        group="training",
        kind="count",
        sample=1000,
        gives_way_to=("epochs", "inbox"),
    )
    seed: int | None = setting(
        None,
        help="Seed for weights and data order.",
        group="training",
        kind="seed",
        takes="N",
        left_open="0",
        sample=0,
    )
    memory: str | None = setting(
        None,
        help="Budget such as 8GiB or 50%.",
        group="memory",
        kind="size or share",
        takes="SIZE",
        left_open="leaves a quarter of the memory free",
        sample="2GiB",
    )
    micro_batch: int | None = setting(
        None,
        help="Windows that go through the model at a time.",
        group="memory",
        kind="count",
        sample=8,
    )
    recipe: Recipe | None = setting(
        None, help="How much memory is traded for time.", group="memory", sample="lean"
    )
    device: Device | None = setting(
        None,
        help="Where to train.",
        group="memory",
        left_open="cuda if there is one",
        sample="cpu",
    )
    wandb: str | None = setting(
        None,
        help="Send curves to Weights & Biases as well.",
        group="output",
        takes="PROJECT",
        command_line_only="it sends data out, and a file that lies in a folder must not",
    )
    smoke: bool = setting(
        False,
        help="Only try it: ten steps, an evaluation, a checkpoint.",
        group="run",
        command_line_only="no run would go further than ten steps",
    )
    no_smoke: bool = setting(
        False,
        help="Begin a long run without trying it first.",
        group="run",
        gives_way_to=("smoke",),
    )
    yes: bool = setting(False, help="Begin a run that will take more than a week.", group="run")


SettingsT = TypeVar("SettingsT", TokenizeSettings, TokenizerSettings)


def loosen(before: SettingsT, now: SettingsT, *, but: tuple[str, ...] = ()) -> SettingsT:
    """`before` with the policies that were "fail" or a limit and are milder `now`, but for those named.

    Such a run has met nothing that was refused: resuming comes to the same bytes as having begun so.
    """
    milder = {
        one.name: getattr(now, one.name)
        for one in declared_settings(type(before))
        if one.milder
        and one.name not in but
        and _is_milder(getattr(before, one.name), getattr(now, one.name))
    }
    return replace(before, **milder)


def _is_milder(before: object, now: object) -> bool:
    if isinstance(before, int):
        return now is None or (isinstance(now, int) and now > before)
    return before == "fail"
