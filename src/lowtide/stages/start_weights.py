"""What fine-tuning starts from: a run of ours, one of its checkpoints, or a GPT2LMHeadModel folder.

The numbers are read one tensor at a time, straight into the new model. A start with a longer context gives its
first positions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import xxhash

from lowtide.errors import LowtideError, UsageError
from lowtide.events import Listener, Note
from lowtide.model.gpt import GPT
from lowtide.model.hugging_face import each_from_hugging_face, shape_of
from lowtide.model.shape import SHAPES, ModelShape
from lowtide.model.tensor_files import TensorFiles, check_size, weight_files
from lowtide.stages.open_model import CONFIG_NAME, TOKENIZER_FILES, read_config
from lowtide.storage.fingerprint import digest_file
from lowtide.storage.paths import as_path
from lowtide.storage.publish import storage_errors
from lowtide.training.build import fill_first_rows
from lowtide.training.checkpoint import MODEL_NAME, STATE_NAME, find_checkpoints, open_weights
from lowtide.training.run_folder import CHECKPOINTS, RUN_NAME, TOKENIZER, read_run_record
from lowtide.training.settings import TrainSettings

CUSTOM = "custom"
"""The name of a model whose shape has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """A model that is there to start from."""

    folder: Path
    """The checkpoint, or the folder of Hugging Face's files."""
    shape: ModelShape
    run: Path | None
    """Whose checkpoint it is; None for Hugging Face's."""

    @property
    def model(self) -> str:
        """The name of a shape like this one; context and vocabulary are not looked at."""
        own = (self.shape.layers, self.shape.heads, self.shape.width)
        for name, shape in SHAPES.items():
            if (shape.layers, shape.heads, shape.width) == own:
                return name
        return CUSTOM

    @property
    def files(self) -> list[Path]:
        """Those that hold the weights."""
        return weight_files(self.folder) if self.run is None else [self.folder / MODEL_NAME]

    def digest(self) -> str:
        """Of the weights' bytes: what the start was, when its folder is long gone."""
        state = xxhash.xxh3_128()
        for path in self.files:
            with storage_errors(path, doing="read"):
                state.update(digest_file(path, 0, path.stat().st_size).encode())
        return state.hexdigest()


def find_start(init: str | Path) -> Start:
    """What lies at a path; of a run, its newest checkpoint."""
    folder = as_path(init)
    with storage_errors(folder, doing="read"):
        if (folder / RUN_NAME).exists():
            return _of_run(folder)
        if (folder / STATE_NAME).exists() and folder.parent.name == CHECKPOINTS:
            return _of_checkpoint(folder, folder.parent.parent)
        if (folder / CONFIG_NAME).exists():
            shape = shape_of(read_config(folder / CONFIG_NAME))
            check_size(shape, weight_files(folder), described_by=folder / CONFIG_NAME)
            return Start(folder=folder, shape=shape, run=None)
    what = "holds neither a run nor a model" if folder.exists() else "does not exist"
    raise UsageError(
        f"{folder} {what}",
        remedy="pass as `--init` the `--out` of a `lowtide train`, one of its checkpoints, or the folder of a "
        "GPT-2 model with config.json and model.safetensors",
    )


def shape_for_start(
    init: str | Path, *, context: int | None, vocabulary_size: int | None
) -> ModelShape:
    """The start's shape, perhaps with a shorter context; UsageError for data or windows it cannot take."""
    return fitted_shape(find_start(init), context=context, vocabulary_size=vocabulary_size)


def fitted_shape(start: Start, *, context: int | None, vocabulary_size: int | None) -> ModelShape:
    """The same of a start that was found."""
    shape = start.shape
    if context is not None and context > shape.context:
        raise UsageError(
            f"windows of {context} tokens are longer than the {shape.context} positions that {start.folder} "
            "has learnt",
            remedy=f"pass `--context {shape.context}`, or leave it out",
        )
    if vocabulary_size is not None and vocabulary_size > shape.vocabulary_size:
        raise UsageError(
            f"the data has a vocabulary of {vocabulary_size}, and {start.folder} knows {shape.vocabulary_size} "
            "tokens",
            remedy="tokenize the data again with the model's own tokenizer: `lowtide tokenize … --tokenizer "
            f"{_tokenizer_of(start) or start.folder}`",
        )
    return shape if context is None else replace(shape, context=context)


def load_start(init: str | Path, model: GPT) -> None:
    """The start's numbers into a model of its shape, or of a shorter context."""
    start = find_start(init)
    wanted = replace(start.shape, context=min(start.shape.context, model.shape.context))
    if model.shape != wanted:
        raise UsageError(
            f"{start.folder} has the shape {start.shape}, and the run {model.shape}",
            remedy="leave `--model` and the plan out: the start decides the shape",
        )
    if start.run is None:
        fill_first_rows(model, each_from_hugging_face(TensorFiles(start.files), start.shape))
    else:
        fill_first_rows(model, open_weights(start.folder).items())


def begins_from(folder: Path, settings: TrainSettings, *, restart: bool) -> Start | None:
    """What a new run starts from; None where weights are drawn, and where a checkpoint stands, which wins."""
    if settings.init is None or (not restart and find_checkpoints(folder)):
        return None
    return find_start(settings.init)


def warn_of_other_tokens(start: Start, tokenizer: Path, listen: Listener) -> None:
    """A start that learnt under another tokenizer is a poor one, and may still be wanted."""
    if tokenizer_differs(start, tokenizer):
        text = (
            f"{start.folder} learnt with another tokenizer than the data's: the same id means another token "
            "to it"
        )
        listen(Note(text=text, level="warning"))


def tokenizer_differs(start: Start, tokenizer: Path) -> bool:
    """Whether an id is known to have meant another token to the start than to the data."""
    from lowtide.tokenizer.tokenizer import Tokenizer

    source = _tokenizer_of(start)
    if source is None or not tokenizer.is_dir():
        return False
    try:
        learnt, given = (Tokenizer.load(one).vocabulary for one in (source, tokenizer))
    except LowtideError:  # what cannot be read, or has no table of tokens, is not known
        return False
    return any(learnt.get(number, token) != token for number, token in given.items())


def _tokenizer_of(start: Start) -> Path | None:
    if start.run is not None:
        folder = start.run / TOKENIZER
        return folder if folder.is_dir() else None
    named = any((start.folder / name).exists() for name in TOKENIZER_FILES)
    return start.folder if named else None


def _of_run(run: Path) -> Start:
    there = find_checkpoints(run)
    if not there:
        raise UsageError(
            f"{run} holds no checkpoint to start from",
            remedy="wait for its first one, or stop that run with a `.stop` file: it saves one then",
        )
    return _of_checkpoint(there[-1], run)


def _of_checkpoint(checkpoint: Path, run: Path) -> Start:
    shape = read_run_record(run).shape
    check_size(shape, [checkpoint / MODEL_NAME], described_by=run / RUN_NAME)
    return Start(folder=checkpoint, shape=shape, run=run)
