"""The stages of the demo: each one's command, the files it writes, and its result in a few lines."""

from __future__ import annotations

import math
import os
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

from lowtide.child import python_command
from lowtide.units import GIB, MIB, format_bytes, format_count, format_seconds, round_up_to_mib

DEFAULT_FOLDER = "lowtide-demo"
TRAINING_BYTES = 640 * MIB
"""Budget of training: torch alone is larger than the budget that text needs."""
_VOCABULARY = 1024
_CONTEXT, _BATCH_TOKENS = 128, 2048

Facts: TypeAlias = Mapping[str, Any]
"""What a command printed with `--json`."""

_NUMBER = "[0-9]" * 6
_OF_A_RUN = "log.jsonl .lowtide/* .*.tmp"
_OF_A_TOKENIZER = "tokenizer.json tokenizer.*.tiktoken tokenizer_config.json vocab.json merges.txt"


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoSettings:
    """What a demo is made of."""

    memory_bytes: int
    library: Path
    """The folder whose sources are the text."""
    with_torch: bool
    """Whether a model is trained, which needs torch."""
    steps: int = 300
    """Half a minute on one core of a laptop."""
    compares: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One command of the demo, run in its folder. Run again, it keeps or resumes what it wrote."""

    key: str
    title: str
    call: str
    """What stands behind `lowtide` when a person types it."""
    describe: Callable[[Facts], list[str]]
    """Its result in a few lines; every figure is the command's own."""
    writes: tuple[str, ...] = ()
    """Patterns of the files that it writes in the demo's folder; `*` stands for any text without a `/`."""
    resumes_in: str = ""
    """The output folder in which the command resumes, if it can be stopped halfway."""
    budget_bytes: int | None = None
    """Memory budget; None if the command has none."""
    needs_torch: bool = False
    number: str = ""
    """Its place among all stages, such as `3/10`."""

    @property
    def has_command(self) -> bool:
        """Whether a person can type it: lowtide has no command that collects Python's sources."""
        return self.key != "corpus"

    @property
    def command(self) -> list[str]:
        """The command as it is run: nothing in the folder can replace a module or change a default."""
        arguments = shlex.split(self.call)
        if not self.has_command:
            return python_command("-m", "lowtide.tools.demo.corpus", *arguments)
        return [*python_command("-m", "lowtide", "--config", os.devnull), *arguments, "--json"]


def list_stages(settings: DemoSettings) -> list[Stage]:
    """All stages, in order, also those that the settings leave out."""
    memory = f"--memory {round_up_to_mib(settings.memory_bytes)}"
    size = f"--context {_CONTEXT} --batch-tokens {_BATCH_TOKENS} --tokens {settings.steps * _BATCH_TOKENS}"
    limit = f"--limit {round_up_to_mib(settings.memory_bytes)}"
    run = "model" if settings.with_torch else "tokens"
    stages = [
        Stage(
            key="corpus",
            title="collect text",
            call=f"corpus.parquet {shlex.quote(str(settings.library))}",
            describe=_describe_corpus,
            writes=("corpus.parquet",),
        ),
        Stage(
            key="tokenizer",
            title="learn a tokenizer",
            call=f"train-tokenizer corpus.parquet --vocab-size {_VOCABULARY} --out tokenizer {memory}",
            describe=_describe_tokenizer,
            writes=_inside(
                "tokenizer",
                _OF_A_TOKENIZER,
                "lowtide-tokenizer.json run.json bytes_per_token.svg",
                _OF_A_RUN,
            ),
            resumes_in="tokenizer",
            budget_bytes=settings.memory_bytes,
        ),
        Stage(
            key="tokenize",
            title="tokenize",
            call=f"tokenize corpus.parquet --tokenizer tokenizer --val 0.01 --out tokens {memory}",
            describe=_describe_tokenize,
            writes=_inside(
                "tokens",
                f"lowtide.json train_{_NUMBER}.npy val_{_NUMBER}.npy documents_TRAIN.npy documents_VAL.npy",
                _OF_A_RUN,
            ),
            resumes_in="tokens",
            budget_bytes=settings.memory_bytes,
        ),
        Stage(key="verify", title="verify", call="verify tokens", describe=_describe_verify),
        Stage(
            key="plan",
            title="plan",
            call=f"plan tokens --model gpt2-pico {size} --write plan.toml",
            describe=_describe_plan,
            writes=("plan.toml",),
        ),
        Stage(
            key="train",
            title="train a GPT",
            call="train tokens --plan plan.toml --device cpu --out model "
            f"--memory {round_up_to_mib(TRAINING_BYTES)}",
            describe=_describe_train,
            writes=_inside(
                "model",
                "lowtide-run.json events.out.tfevents.* checkpoints/step-*/* checkpoints/.step-*/* tokenizer/*",
                _OF_A_RUN,
            ),
            resumes_in="model",
            budget_bytes=TRAINING_BYTES,
            needs_torch=True,
        ),
        Stage(
            key="sample",
            title="sample from it",
            call="sample model --prompt 'def main(' --count 48 --device cpu",
            describe=_describe_sample,
            needs_torch=True,
        ),
        Stage(
            key="export",
            title="export it",
            call="export model --to huggingface --out for-transformers",
            describe=lambda _facts: ["a GPT-2 that transformers opens"],
            writes=(
                *_inside(
                    "for-transformers",
                    _OF_A_TOKENIZER,
                    "config.json generation_config.json model.safetensors lowtide-export.json",
                ),
                ".for-transformers.*.tmp/*",
            ),
            needs_torch=True,
        ),
        Stage(
            key="compare",
            title="compare",
            call="compare corpus.parquet --programs list,lowtide --sample 100MB "
            f"{limit} --out compare.html",
            describe=lambda facts: [_program_line(program) for program in facts["programs"]],
            writes=("compare.html",),
        ),
        Stage(
            key="report",
            title="report",
            call=f"report {run}",
            describe=lambda facts: [str(facts["verdict"])],
            writes=("model/report.html", "tokens/report.html"),
        ),
    ]
    return [
        replace(stage, number=f"{place}/{len(stages)}") for place, stage in enumerate(stages, 1)
    ]


def _inside(folder: str, *names: str) -> tuple[str, ...]:
    return tuple(f"{folder}/{name}" for name in " ".join(names).split())


def _describe_corpus(facts: Facts) -> list[str]:
    size = format_bytes(facts["text_bytes"])
    files = format_count(facts["files"])
    return [f"the sources of Python {facts['python']}: {files} files, {size}"]


def _describe_tokenizer(facts: Facts) -> list[str]:
    learnt = facts["learnt"][0]
    made = f"{format_count(learnt['tokens'])} tokens from {format_count(facts['words'])} words"
    return [f"{made}, {learnt['bytes_per_token']:.2f} bytes a token"]


def _describe_tokenize(facts: Facts) -> list[str]:
    empty = facts["empty_documents"]
    left_out = f", {format_count(empty)} empty ones left out" if empty else ""
    made = f"{format_count(facts['tokens'])} tokens"
    return [f"{made} of {format_count(facts['documents'])} documents{left_out}"]


def _describe_verify(facts: Facts) -> list[str]:
    compared = facts["compared_documents"]
    equal = f"{compared} documents equal to their text" if compared else facts["comparison"]
    return [f"every checksum right; {equal}"]


def _describe_plan(facts: Facts) -> list[str]:
    model = facts["models"][0]
    size = f"{format_count(model['parameters'])} parameters, {model['steps']} steps"
    memory = f"{format_bytes(model['peak_bytes'])} beside torch (predicted)"
    hours = model["hours"]
    time = f", about {format_seconds(hours * 3600)} ({model['hours_basis']})" if hours else ""
    return [f"{size}: {memory}{time}"]


def _describe_train(facts: Facts) -> list[str]:
    loss = f"loss {facts['best_loss']:.2f} on held-out text (guessing: {math.log(_VOCABULARY):.2f})"
    return [f"{facts['step']} steps; {loss}"]


def _describe_sample(facts: Facts) -> list[str]:
    """The first lines of the text; empty ones are left out."""
    text = f"{facts['prompt']}{facts['samples'][0]}"
    return [line.rstrip() for line in text.splitlines() if line.strip()][:6]


def _program_line(program: Facts) -> str:
    """How a program ended; with lowtide's budget, which holds for any text, or what others take for more."""
    whole = program["runs"][0]
    share = "" if whole["share"] is None else f" after {math.floor(100 * whole['share'])} %"
    ended = "finished" if whole["outcome"] == "finished" else f"{whole['outcome']}{share}"
    line = f"{program['name']}: {ended}, peak {format_bytes(whole['peak_private_bytes'])}"
    budget, growth = program["budget_bytes"], program["bytes_per_text_byte"]
    if budget is not None:
        return f"{line} (its budget is {format_bytes(budget)})"
    if growth is None:
        return line
    return f"{line}; a GiB of text would take {format_bytes(round(growth * GIB))} (predicted)"
