"""The one name that is imported."""

from __future__ import annotations


class VisionDataset:
    """A base class of classes that are not used."""
