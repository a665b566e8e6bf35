"""From raw text to token shards and a trained GPT, inside a memory budget you name.

The public names are loaded when they are first used, so that importing lowtide costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lowtide.dataset.find_tokens import open_dataset
    from lowtide.dataset.mixture import Mixture
    from lowtide.dataset.token_dataset import TokenDataset
    from lowtide.errors import LowtideError
    from lowtide.pipeline.examine import inspect, verify
    from lowtide.pipeline.export import export
    from lowtide.pipeline.settings import TokenizeSettings
    from lowtide.pipeline.tokenize import TokenizeResult, tokenize
    from lowtide.pipeline.train_settings import TrainSettings
    from lowtide.pipeline.train_tokenizer import TrainResult, train_tokenizer
    from lowtide.tokenizer.tokenizer import Tokenizer

__version__ = "0.1.0"
__all__ = [
    "LowtideError",
    "Mixture",
    "TokenDataset",
    "TokenizeResult",
    "TokenizeSettings",
    "Tokenizer",
    "TrainResult",
    "TrainSettings",
    "__version__",
    "export",
    "inspect",
    "open_dataset",
    "tokenize",
    "train_tokenizer",
    "verify",
]

_HOMES = {
    "LowtideError": "lowtide.errors",
    "Mixture": "lowtide.dataset.mixture",
    "TokenDataset": "lowtide.dataset.token_dataset",
    "TokenizeResult": "lowtide.pipeline.tokenize",
    "TokenizeSettings": "lowtide.pipeline.settings",
    "Tokenizer": "lowtide.tokenizer.tokenizer",
    "TrainResult": "lowtide.pipeline.train_tokenizer",
    "TrainSettings": "lowtide.pipeline.train_settings",
    "export": "lowtide.pipeline.export",
    "inspect": "lowtide.pipeline.examine",
    "open_dataset": "lowtide.dataset.find_tokens",
    "tokenize": "lowtide.pipeline.tokenize",
    "train_tokenizer": "lowtide.pipeline.train_tokenizer",
    "verify": "lowtide.pipeline.examine",
}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'lowtide' has no attribute {name!r}")
    return getattr(importlib.import_module(home), name)


def __dir__() -> list[str]:
    return sorted(__all__)
