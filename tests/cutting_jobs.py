"""Files that are cut while they are read through a map, in a process of its own: a SIGBUS would end it.

    python -m tests.cutting_jobs KIND FOLDER LEFT_BYTES

Prints the error's class for each way of reading.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from lowtide.errors import LowtideError
from lowtide.source.blocks import ReadSettings
from lowtide.source.find_inputs import find_inputs
from lowtide.source.stream import read_blocks
from lowtide.tokenizer.merge_pairs import read_classes
from lowtide.tokenizer.word_runs import RunRecord, encode_run, map_run, merge_runs
from lowtide.units import KIB
from tests.source.examples.rows import example_settings, template_at
from tests.source.readings import START, reading

Outcomes = dict[str, str]


def cut_while_reading(kind: str, folder: Path, left_bytes: int) -> Outcomes:
    """How each way of reading files of the kind ends when they are cut to `left_bytes`."""
    command = [sys.executable, "-m", "tests.cutting_jobs", kind, str(folder), str(left_bytes)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, (done.returncode, done.stderr)
    outcomes: Outcomes = json.loads(done.stdout)
    return outcomes


def main() -> None:
    """One kind of files."""
    kind, folder, left_bytes = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    jobs = {"words": cut_words, "arrow": cut_arrow}
    print(json.dumps(jobs[kind](folder, left_bytes)))


def outcome_of(work: Callable[[], None]) -> str:
    try:
        work()
    except LowtideError as error:
        return type(error).__name__
    return "no error"


def cut_words(folder: Path, left_bytes: int) -> Outcomes:
    """Runs of words, of which one is cut while they are merged, the other while its words are counted."""
    records = []
    for first in (0, 1):
        run = encode_run({b"%06d" % number + bytes(2000): 1 for number in range(first, 4000, 2)})
        (folder / f"{first}.words").write_bytes(run)
        records.append(RunRecord(name=f"{first}.words", size_bytes=len(run), digest=""))

    def merge() -> None:
        cut = folder / records[1].name
        merge_runs(folder, records, "all.words", after_each=lambda: os.truncate(cut, left_bytes))

    def learn() -> None:
        with map_run(folder, records[0]) as words:
            os.truncate(folder / records[0].name, left_bytes)
            read_classes(words)

    return {"merging": outcome_of(merge), "learning": outcome_of(learn)}


def cut_arrow(folder: Path, left_bytes: int) -> Outcomes:
    """One large record batch of each sort of text column, and one of chats, cut after the first block."""
    texts = pa.array([f"words of row {number} " * 12 for number in range(20_000)])
    chats = [[{"role": role, "content": "word " * 9} for role in ("user", "assistant")]] * 9000
    columns = {
        "string": texts,
        "large": texts.cast(pa.large_string()),
        "view": texts.cast(pa.string_view()),
        "dictionary": texts.dictionary_encode(),
        "struct": pa.StructArray.from_arrays([texts], ["inner"]),
    }
    outcomes = {}
    for name, column in columns.items():
        settings = reading(
            block_bytes=64 * KIB, column="text.inner" if name == "struct" else "text"
        )
        path = write_stream(folder / f"{name}.arrow", {"text": column})
        outcomes[name] = outcome_of(lambda: cut_after_a_block(path, settings, left_bytes))  # noqa: B023
    settings = replace(example_settings(template_at("chatml")), block_bytes=64 * KIB)
    path = write_stream(folder / "chats.arrow", {"messages": pa.array(chats)})
    outcomes["chats"] = outcome_of(lambda: cut_after_a_block(path, settings, left_bytes))
    return outcomes


def cut_after_a_block(path: Path, settings: ReadSettings, left_bytes: int) -> None:
    for _ in read_blocks(find_inputs([str(path)]), settings, start=START):
        os.truncate(path, left_bytes)


def write_stream(path: Path, columns: dict[str, pa.Array]) -> Path:
    table = pa.table(columns)
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return path


if __name__ == "__main__":
    main()
