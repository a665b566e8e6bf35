"""`lowtide verify`: prove a dataset."""

from __future__ import annotations

import click


@click.command("verify")
@click.argument("path", metavar="DIR")
@click.option("--tokenizer", help="Tokenizer of a peer's files, or where it lies now.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def verify_command(path: str, tokenizer: str | None, as_json: bool) -> int:
    """Prove a dataset: sizes, checksums, ids, document index, and a sample against the input.

    Exit code 4 when anything is wrong.
    """
    from lowtide.pipeline.examine import verify
    from lowtide.report.results import show_proof

    proof = verify(path, tokenizer=tokenizer)
    show_proof(proof, as_json)
    return 0 if proof.verification.sound else 4
