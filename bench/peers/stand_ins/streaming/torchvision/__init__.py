"""Stands in for torchvision: mosaicml-streaming imports it for datasets of images, of which the bench has none.

A torchvision that fits a CPU build of torch is not to be had everywhere, and another one cannot be imported.
"""
