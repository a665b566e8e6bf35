"""From raw text to token shards and a trained GPT, inside a memory budget you name.

The public names are loaded when they are first used, so that importing lowtide costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lowtide.api import tokenize, train_tokenizer
    from lowtide.dataset.find_tokens import open_dataset
    from lowtide.dataset.mixture import Mixture
    from lowtide.dataset.token_dataset import TokenDataset
    from lowtide.errors import LowtideError
    from lowtide.pipeline.examine import inspect, verify
    from lowtide.pipeline.export import export
    from lowtide.pipeline.export_model import export_model
    from lowtide.pipeline.plan import make_plan
    from lowtide.pipeline.sample import sample
    from lowtide.pipeline.tokenize import TokenizeResult
    from lowtide.pipeline.train import train
    from lowtide.pipeline.train_tokenizer import TokenizerResult
    from lowtide.plan.make_plan import Plan
    from lowtide.settings import TokenizerSettings, TokenizeSettings
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
    "export",
    "export_model",
    "inspect",
    "make_plan",
    "open_dataset",
    "sample",
    "tokenize",
    "train",
    "train_tokenizer",
    "verify",
]

_HOMES = {
    "LowtideError": "lowtide.errors",
    "Mixture": "lowtide.dataset.mixture",
    "Plan": "lowtide.plan.make_plan",
    "TrainSettings": "lowtide.training.settings",
    "TokenDataset": "lowtide.dataset.token_dataset",
    "TokenizeResult": "lowtide.pipeline.tokenize",
    "TokenizeSettings": "lowtide.pipeline.settings",
    "Tokenizer": "lowtide.tokenizer.tokenizer",
    "TokenizerResult": "lowtide.pipeline.train_tokenizer",
    "TokenizerSettings": "lowtide.pipeline.tokenizer_settings",
    "TrainResult": "lowtide.training.run_results",
    "export": "lowtide.pipeline.export",
    "export_model": "lowtide.pipeline.export_model",
    "inspect": "lowtide.pipeline.examine",
    "make_plan": "lowtide.pipeline.plan",
    "open_dataset": "lowtide.dataset.find_tokens",
    "sample": "lowtide.pipeline.sample",
    "tokenize": "lowtide.api",
    "train": "lowtide.pipeline.train",
    "train_tokenizer": "lowtide.api",
    "verify": "lowtide.pipeline.examine",
}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'lowtide' has no attribute {name!r}")
    return getattr(importlib.import_module(home), name)


def __dir__() -> list[str]:
    return sorted(__all__)
