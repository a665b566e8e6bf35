"""Samples of many inputs: each place is found without a walk over all of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from lowtide.source.find_inputs import InputFile, find_inputs
from lowtide.source.sample import count_documents, sample_inputs
from tests.source.readings import reading


class CountedInputs(list[InputFile]):
    """Counts how many inputs were looked at one after the other."""

    walked = 0

    def __iter__(self) -> Iterator[InputFile]:
        for file in super().__iter__():
            self.walked += 1
            yield file


def test_documents_of_many_files_are_counted_in_a_few_walks_over_them(tmp_path: Path) -> None:
    for number in range(300):
        line = "words " * (number % 5) + "\n"
        (tmp_path / f"{number:03}.txt").write_text("" if number % 3 else line * 2000)
    inputs = CountedInputs(find_inputs([str(tmp_path)]))
    settings = reading(separator="line", block_bytes=4096)
    samples = sample_inputs(inputs, settings, count=16)
    count = count_documents(inputs, settings, samples)
    wanted = sum(2000 for number in range(0, 300, 3) if number % 5)
    assert abs(count - wanted) < wanted / 5
    assert inputs.walked < 30 * len(inputs)
