"""`lowtide verify`: prove a dataset."""

from __future__ import annotations

import click

from lowtide.cli.choices import FILE, TOKENIZER, debug_option, json_option
from lowtide.cli.command import Command, examples


@click.command(
    "verify",
    cls=Command,
    epilog=examples(
        "lowtide verify tokens",
        "lowtide verify tokens --json",
        "lowtide verify data/train.bin --tokenizer gpt2",
        read_on="docs/nothing-lost.md",
    ),
)
@click.argument("path", type=FILE, metavar="DIR")
@click.option(
    "--tokenizer",
    type=TOKENIZER,
    metavar="NAME|PATH",
    help="Tokenizer of a peer's files, or where it lies now.",
)
@json_option
@debug_option
def verify_command(path: str, tokenizer: str | None, as_json: bool) -> int:
    """Prove that a dataset is whole and right.

    Sizes, checksums, ids, the document index and the loss mask are read in full. A sample of documents is
    compared with the input, if that is still there. Exit code 4 when anything is wrong.
    """
    from lowtide.show.results import show_proof
    from lowtide.stages.examine import verify

    proof = verify(path, tokenizer=tokenizer)
    found = proof.verification
    show_proof(
        found,
        compared=proof.compared_documents,
        other_ids=proof.other_ids,
        why_no_more=proof.comparison,
        as_json=as_json,
    )
    return 0 if found.sound else 4
