"""`lowtide`'s own command, with the count of its tokens kept in a file that outlives a kill.

    python -m bench.counted_run COUNT_FILE tokenize ...

The folder tells what was stored; this tells what was done. The difference is what a restart repeats.
"""

from __future__ import annotations

import mmap
import struct
import sys
from pathlib import Path

from lowtide.cli.main import main
from lowtide.stages.encode_blocks import ArrangedBlock
from lowtide.stages.shard_run import ShardRun


def count_into(path: Path) -> None:
    """Have every run of this process write its token count to the file, block by block."""
    path.write_bytes(bytes(8))
    with path.open("r+b") as file:
        page = mmap.mmap(file.fileno(), 8)
    take = ShardRun.take

    def take_and_count(run: ShardRun, encoded: ArrangedBlock) -> bool:
        due = take(run, encoded)
        struct.pack_into("<q", page, 0, run.counts.tokens)
        return due

    ShardRun.take = take_and_count  # type: ignore[method-assign]


def read_count(path: Path) -> int:
    """Tokens that the last run had taken; 0 if it had not come to its first block."""
    return int.from_bytes(path.read_bytes(), "little") if path.exists() else 0


if __name__ == "__main__":
    count_into(Path(sys.argv[1]))
    main(sys.argv[2:])
