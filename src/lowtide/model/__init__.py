"""The GPT itself: its shape, its forward pass, its loss, its memory, and text out of it.

Enters: token ids. Leaves: a loss, or the next token. `shape`, `needs` and `chunks` know nothing of torch, so
that planning costs nothing; every other file here imports it.
"""
