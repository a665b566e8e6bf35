"""The weights that `--init` names: a run of ours, one of its checkpoints, or a GPT2LMHeadModel folder.

They are read one tensor at a time, straight into the new model. Of a longer context the first positions count.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import xxhash

from lowtide.errors import LowtideError, UsageError
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

CUSTOM = "custom"
"""The name of a model whose shape has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InitialWeights:
    """A checkpoint of ours, or a model in Hugging Face's form."""

    folder: Path
    shape: ModelShape
    run: Path | None
    """The run that the checkpoint belongs to; None for Hugging Face's."""

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

    @property
    def tokenizer(self) -> Path | None:
        """The folder of the tokenizer that the model was trained with, if it is known."""
        if self.run is not None:
            return self.run / TOKENIZER if (self.run / TOKENIZER).is_dir() else None
        named = any((self.folder / name).exists() for name in TOKENIZER_FILES)
        return self.folder if named else None

    def digest(self) -> str:
        """Of the weights' bytes: what they were, when the folder is long gone."""
        state = xxhash.xxh3_128()
        for path in self.files:
            with storage_errors(path, doing="read"):
                state.update(digest_file(path, 0, path.stat().st_size).encode())
        return state.hexdigest()

    def shape_for(self, *, context: int | None, vocabulary_size: int | None) -> ModelShape:
        """The shape of a run from these weights; UsageError for windows or data that it cannot take."""
        if context is not None and context > self.shape.context:
            raise UsageError(
                f"windows of {context} tokens are longer than the {self.shape.context} positions that "
                f"{self.folder} has learnt",
                remedy=f"pass `--context {self.shape.context}`, or leave it out",
            )
        if vocabulary_size is not None and vocabulary_size > self.shape.vocabulary_size:
            raise UsageError(
                f"the data has a vocabulary of {vocabulary_size}, and {self.folder} knows "
                f"{self.shape.vocabulary_size} tokens",
                remedy="tokenize the data again with the model's own tokenizer: `lowtide tokenize … "
                f"--tokenizer {self.tokenizer or self.folder}`",
            )
        return self.shape if context is None else replace(self.shape, context=context)

    def load(self, model: GPT) -> None:
        """Copy the weights into a model of their shape, or of a shorter context."""
        wanted = replace(self.shape, context=min(self.shape.context, model.shape.context))
        if model.shape != wanted:
            raise UsageError(
                f"{self.folder} has the shape {self.shape}, and the run {model.shape}",
                remedy="leave `--model` and the plan out: the initial weights decide the shape",
            )
        if self.run is None:
            fill_first_rows(model, each_from_hugging_face(TensorFiles(self.files), self.shape))
        else:
            fill_first_rows(model, open_weights(self.folder).items())

    def differ_in_tokens(self, tokenizer: Path) -> bool:
        """Whether an id is known to have meant another token to these weights than to the tokenizer."""
        from lowtide.tokenizer.tokenizer import Tokenizer

        if self.tokenizer is None or not tokenizer.is_dir():
            return False
        try:
            learnt, given = (Tokenizer.load(one).vocabulary for one in (self.tokenizer, tokenizer))
        except LowtideError:  # what cannot be read, or has no table of tokens, is not known
            return False
        return any(learnt.get(number, token) != token for number, token in given.items())


def find_initial_weights(init: str | Path) -> InitialWeights:
    """What lies at a path; of a run, its newest checkpoint."""
    folder = as_path(init)
    with storage_errors(folder, doing="read"):
        if (folder / RUN_NAME).exists():
            found = find_checkpoints(folder)
            if not found:
                raise UsageError(
                    f"{folder} holds no checkpoint to start from",
                    remedy="wait for its first one, or stop that run with a `.stop` file: it saves one then",
                )
            return _of_checkpoint(found[-1], folder)
        if (folder / STATE_NAME).exists() and folder.parent.name == CHECKPOINTS:
            return _of_checkpoint(folder, folder.parent.parent)
        if (folder / CONFIG_NAME).exists():
            shape = shape_of(read_config(folder / CONFIG_NAME))
            check_size(shape, weight_files(folder), described_by=folder / CONFIG_NAME)
            return InitialWeights(folder=folder, shape=shape, run=None)
    what = "holds neither a run nor a model" if folder.exists() else "does not exist"
    raise UsageError(
        f"{folder} {what}",
        remedy="pass as `--init` the `--out` of a `lowtide train`, one of its checkpoints, or the folder of a "
        "GPT-2 model with config.json and model.safetensors",
    )


def _of_checkpoint(checkpoint: Path, run: Path) -> InitialWeights:
    shape = read_run_record(run).shape
    check_size(shape, [checkpoint / MODEL_NAME], described_by=run / RUN_NAME)
    return InitialWeights(folder=checkpoint, shape=shape, run=run)
