"""A folder of XDS documents, each named by the position of its first event."""

from __future__ import annotations

import re
from collections.abc import Sequence

from penstock.database import SetupStep
from penstock.errors import OperatorError
from penstock.formats.xds.writer import document_of
from penstock.position import Scn
from penstock.storage import MissingFileError, NameTakenError, Storage

_NAME = re.compile(r"[0-9]{19}\.xml")


class XdsFolder:
    """Takes documents, each of which appears whole; one that comes again, word for word, is there once."""

    def __init__(self, storage: Storage) -> None:
        """Write to a folder; nothing is touched yet."""
        self._storage = storage

    @property
    def label(self) -> str:
        """The folder, named without secrets."""
        return self._storage.label

    @property
    def shown_by(self) -> str:
        """What shows what was published."""
        return "the documents are files in that folder"

    def hold_against(self, position: Scn) -> None:
        """Make sure that no document is there that lies behind the journal's position.

        Raises:
            OperatorError: The journal is another one, or was restored to an older state.
        """
        last = max((name for name in self._storage.names("") if _NAME.fullmatch(name)), default="")
        if last > _name(position):
            raise OperatorError(
                f"document {last} lies behind position {position} of the journal: the folder was filled from another"
                " journal of this event log, or from this one in a later state",
                where=self.label,
                do="publish to an empty folder, or move that file away, and those of its journal: what was not settled"
                " is published again",
            )

    def steps(self) -> Sequence[SetupStep]:
        """Nothing has to be made: a folder comes with its first file."""
        return ()

    def make(self) -> None:
        """Make nothing."""

    def refuse_unfit(self) -> None:
        """Make sure that files can be written; raises an `OperatorError` otherwise."""
        self._storage.check_writable("")

    def put_all(self, documents: Sequence[tuple[Scn, Sequence[str]]]) -> None:
        """Write documents, which appear in this order; each as `put` does."""
        files = [(_name(first), document_of(elements)) for first, elements in documents]
        try:
            self._storage.create_all(files)
        except NameTakenError:
            # An earlier run has broken off here.
            for first, elements in documents:
                self.put(first, elements)

    def put(self, first: Scn, elements: Sequence[str]) -> None:
        """Write a document of event elements.

        Args:
            first: The position of the first event.

        Raises:
            OperatorError: Another document has its name.
        """
        name, document = _name(first), document_of(elements)
        try:
            self._storage.create(name, document)
        except NameTakenError as exc:
            try:
                is_same = self._storage.read(name) == document
            except MissingFileError:
                # Whoever reads the folder has just taken it away: it was delivered.
                return
            if not is_same:
                raise OperatorError(
                    f"file {name} holds another document: the folder was filled from another journal, or batch_size was"
                    " changed while a poll was half delivered",
                    where=self.label,
                    do="publish to an empty folder, or move that file away",
                ) from exc


def _name(first: Scn) -> str:
    return f"{first:019d}.xml"
