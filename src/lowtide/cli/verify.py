"""`lowtide verify`: prove a dataset."""

from __future__ import annotations

import click

from lowtide.cli.choices import debug_option


@click.command("verify")
@click.argument("path", metavar="DIR")
@click.option("--tokenizer", help="Tokenizer of a peer's files, or where it lies now.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@debug_option
def verify_command(path: str, tokenizer: str | None, as_json: bool) -> int:
    """Prove that a dataset is whole and right.

    Sizes, checksums, ids, the document index and learnt bits are read in full. A sample of documents is
    compared with the input, if that is still there. Exit code 4 when anything is wrong.
    """
    from lowtide.pipeline.examine import verify
    from lowtide.report.results import show_proof

    proof = verify(path, tokenizer=tokenizer)
    found = proof.verification
    show_proof(
        found, compared=proof.compared_documents, why_no_more=proof.comparison, as_json=as_json
    )
    return 0 if found.sound else 4
