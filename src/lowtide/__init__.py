"""From raw text to token shards and a trained GPT, inside a memory budget you name.

The public names are loaded when they are first used, so that importing lowtide costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lowtide.api import (
        compare,
        export,
        report,
        tokenize,
        train,
        train_tokenizer,
        verify,
        watch,
        why,
    )
    from lowtide.dataset.find_tokens import open_dataset
    from lowtide.dataset.mixture import Mixture
    from lowtide.dataset.token_dataset import TokenDataset
    from lowtide.errors import LowtideError
    from lowtide.plan.make_plan import Plan
    from lowtide.settings import TokenizerSettings, TokenizeSettings
    from lowtide.stages.examine import inspect
    from lowtide.stages.export_model import export_model
    from lowtide.stages.plan import make_plan
    from lowtide.stages.sample import sample
    from lowtide.stages.tokenize import TokenizeResult
    from lowtide.stages.train_tokenizer import TokenizerResult
    from lowtide.tokenizer.tokenizer import Tokenizer
    from lowtide.training.run_results import TrainResult
    from lowtide.training.settings import TrainSettings

__version__ = "0.1.0"
__all__ = [
    "LowtideError",
    "Mixture",
    "Plan",
    "TokenDataset",
    "TokenizeResult",
    "TokenizeSettings",
    "Tokenizer",
    "TokenizerResult",
    "TokenizerSettings",
    "TrainResult",
    "TrainSettings",
    "__version__",
    "compare",
    "export",
    "export_model",
    "inspect",
    "make_plan",
    "open_dataset",
    "report",
    "sample",
    "tokenize",
    "train",
    "train_tokenizer",
    "verify",
    "watch",
    "why",
]

_HOMES = {
    "LowtideError": "lowtide.errors",
    "Mixture": "lowtide.dataset.mixture",
    "Plan": "lowtide.plan.make_plan",
    "TrainSettings": "lowtide.training.settings",
    "TokenDataset": "lowtide.dataset.token_dataset",
    "TokenizeResult": "lowtide.stages.tokenize",
    "TokenizeSettings": "lowtide.settings",
    "Tokenizer": "lowtide.tokenizer.tokenizer",
    "TokenizerResult": "lowtide.stages.train_tokenizer",
    "TokenizerSettings": "lowtide.settings",
    "TrainResult": "lowtide.training.run_results",
    "compare": "lowtide.api",
    "export": "lowtide.api",
    "export_model": "lowtide.stages.export_model",
    "inspect": "lowtide.stages.examine",
    "make_plan": "lowtide.stages.plan",
    "open_dataset": "lowtide.dataset.find_tokens",
    "report": "lowtide.api",
    "sample": "lowtide.stages.sample",
    "tokenize": "lowtide.api",
    "train": "lowtide.api",
    "train_tokenizer": "lowtide.api",
    "verify": "lowtide.api",
    "watch": "lowtide.api",
    "why": "lowtide.api",
}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'lowtide' has no attribute {name!r}")
    return getattr(importlib.import_module(home), name)


def __dir__() -> list[str]:
    return sorted(__all__)
