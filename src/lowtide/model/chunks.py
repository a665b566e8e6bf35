"""How many rows of features become logits at a time. No torch here: planning asks too."""

from __future__ import annotations

_CHUNKS = 8
_FEWEST_LOGITS, _MOST_LOGITS = 1 << 26, 1 << 29
_ROWS_OF_A_TILE = 256
_LOGITS_OF_A_SLICE = 1 << 20


def chunk_rows(rows: int, columns: int) -> int:
    """An eighth of the rows: the gradient of the head, read and written for each chunk, costs little then.

    Between 128 MiB and 1 GiB of bfloat16 logits, in whole tiles of the matrix units; the last may be short.
    """
    wanted = min(max(rows * columns // _CHUNKS, _FEWEST_LOGITS), _MOST_LOGITS) // columns
    return max(1, min(rows, -(-wanted // _ROWS_OF_A_TILE) * _ROWS_OF_A_TILE))


def slice_rows(columns: int) -> int:
    """How many rows of a chunk are turned at once where that takes copies: 4 MiB each in float32."""
    return max(1, _LOGITS_OF_A_SLICE // columns)
