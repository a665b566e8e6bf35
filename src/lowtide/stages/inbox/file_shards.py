"""The shards of files that are in hand: made by a process of its own, verified, removed when a file is done."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import xxhash

from lowtide.errors import UsageError, VerificationError
from lowtide.shards.layout import MANIFEST_NAME, WORK_FOLDER
from lowtide.shards.manifest import DatasetManifest, read_manifest
from lowtide.shards.verify import verify_dataset
from lowtide.source.utf8 import is_encodable
from lowtide.stages.inbox.ledger import Entry
from lowtide.stages.inbox.look import is_as_taken
from lowtide.stages.inbox.prepare import Inbox
from lowtide.stages.inbox.tokenize_apart import Refused, tokenize_apart
from lowtide.stages.inbox.tokenize_child import Request
from lowtide.storage.publish import remove_path, storage_errors
from lowtide.training.loop import OpenRun
from lowtide.units import format_bytes, printable

WORK_NAME = "inbox"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gone:
    """Why nothing of a file is kept, and whatever bears its name later is looked at anew."""

    reason: str


class FileShards:
    """A folder in the run's work folder, with shards for each file that is taken and not done."""

    def __init__(
        self,
        run: OpenRun,
        inbox: Inbox,
        environment: Mapping[str, str] | None,
        tell: Callable[[str], None],
    ) -> None:
        self._run = run
        self._inbox = inbox
        self._environment = environment
        self._tell = tell
        self._made: set[Path] = set()
        """By this process: they need no second look."""
        self.folder = run.folder / WORK_FOLDER / WORK_NAME
        with storage_errors(self.folder):
            self.folder.mkdir(exist_ok=True)

    def shards_of(self, entry: Entry) -> Path:
        """Their name tells the file and how it is read: what another run left is never taken for them."""
        content = f"{entry.fingerprint} {entry.name} {json.dumps(self._inbox.source.stream)}"
        digest = xxhash.xxh3_64_hexdigest(content.encode(errors="surrogateescape"))
        return self.folder / f"{entry.number:06d}-{digest}"

    def remove(self, entry: Entry) -> None:
        """Nothing of the file is left."""
        self._made.discard(self.shards_of(entry))
        self._remove(self.shards_of(entry))

    def clear(self, pending: Sequence[Entry]) -> None:
        """All but those of files that are still to be done."""
        kept = {self.shards_of(entry) for entry in pending}
        for path in self.folder.iterdir():
            if path not in kept:
                self._remove(path)

    def read(self, entry: Entry) -> DatasetManifest:
        """What the shards hold; UsageError where they were made by another tokenizer or template."""
        manifest = read_manifest(self.shards_of(entry))
        template = manifest.examples.template_text if manifest.examples else None
        tokens = manifest.settings.get("template_tokens")
        made_by = manifest.tokenizer.fingerprint, template, tokens
        named = self._inbox.tokenize
        if made_by != (self._inbox.fingerprint, named.template_text, named.template_tokens):
            self.remove(entry)
            raise UsageError(
                f"{printable(entry.name)} was tokenized by another tokenizer or template than the run's",
                remedy="put back what was changed, and run the same command again",
            )
        return manifest

    def make(self, entry: Entry, *, begun: bool) -> Refused | Gone | None:
        """None when the file's shards stand. VerificationError where they are lost, and the file with them,
        although the model has begun to learn from it."""
        if not is_encodable(entry.name):
            return Gone(reason="its name is not UTF-8")
        path, shards = self._inbox.folder / entry.name, self.shards_of(entry)
        if self._stand(entry, path, shards):
            return None
        refused = None
        if is_as_taken(path, entry):
            self._tell(f"tokenizing {entry.name} ({format_bytes(entry.size_bytes)})")
            refused = self._tokenize(path, shards)
        if is_as_taken(path, entry):
            self._made.add(shards)
            return refused
        if begun:
            problem = f"{printable(entry.name)} is learnt in part, its shards are gone"
            raise self._lost(entry, problem)
        return Gone(reason="it was changed or removed before it was read whole")

    def _stand(self, entry: Entry, path: Path, shards: Path) -> bool:
        """Whether nothing is left to do for them. The file itself may be gone by then."""
        if not (shards / MANIFEST_NAME).exists():
            return False
        if shards not in self._made:
            found = verify_dataset(shards)
            if not found.sound:
                if entry.stage == "ready" and not is_as_taken(path, entry):
                    problem = (
                        f"the shards of {printable(entry.name)} are damaged ({found.problems[0]})"
                    )
                    raise self._lost(entry, problem)
                self._tell(f"the shards of {entry.name} are damaged: it is tokenized again")
                self._remove(shards)
                return False
        return entry.stage == "ready"

    def _remove(self, path: Path) -> None:
        with storage_errors(path):
            remove_path(path)

    def _lost(self, entry: Entry, problem: str) -> VerificationError:
        run = self._run.folder
        return VerificationError(
            f"{problem}, and the file is not in the inbox as it was taken",
            remedy=f"put {printable(entry.name)} ({entry.size_bytes:,} bytes) back as it was, and "
            f"run the same command again; or begin a new run with another `--out` and `--init {run}`",
        )

    def _tokenize(self, path: Path, shards: Path) -> Refused | None:
        request = Request(
            path=str(path),
            out=str(shards),
            settings=self._inbox.tokenize,
            fingerprint=self._inbox.fingerprint,
            memory=self._inbox.share_of(self._run.budget),
        )
        began_before = shards.exists()
        try:
            refused = self._ask(request)
            if refused is None or not began_before:
                return refused
        except VerificationError:
            if not began_before:
                raise
        self._remove(shards)  # what was there may be the trouble
        return self._ask(request)

    def _ask(self, request: Request) -> Refused | None:
        return tokenize_apart(
            request,
            why_stop=self._run.why_stop,
            listen=self._run.listen,
            environment=self._environment,
        )
