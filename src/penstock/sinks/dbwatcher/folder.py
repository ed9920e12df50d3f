"""Files of DbWatcher messages: each appears whole, with its messages one behind the other and the position behind them.

A file with one message is a document of XML; one with several is as many documents, each of which begins with an XML
declaration. What travels beside a message in Kafka, as headers, stands in its `<desc>` here, as attributes. The
position is a comment, which no reader of XML takes for something else; a file with nothing but a position has a message
without rows before it, which asks for nothing.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from penstock.formats.dbwatcher.message import Command, Head, Message
from penstock.formats.dbwatcher.writer import write_attribute, write_message
from penstock.formats.debezium.writer import OutgoingRecord
from penstock.sinks.events.files import Folder
from penstock.sinks.events.state import StateEntry

_BEGIN = b"<!-- "
_END = b" -->\n"

_END_OF_DESC = b"   </desc>\n"

_UNFIT = {"-": "\\u002d", "<": "\\u003c", ">": "\\u003e", "&": "\\u0026"}
"""What a comment of XML cannot hold, or what who looks for messages would take for something else."""

_ESCAPED = str.maketrans(_UNFIT)


@dataclass(frozen=True)
class MessageFolder(Folder):
    """A folder of files with messages; implements `publisher.EventDestination`."""

    suffix: ClassVar[str] = ".xml"

    def record(self, record: OutgoingRecord) -> bytes:
        """Return a message with its properties as attributes of `<desc>`."""
        assert record.value is not None
        # Nothing in front of it looks like it, as all texts in <desc> are escaped.
        head, end, rest = record.value.partition(_END_OF_DESC)
        told = [write_attribute(name, value.decode()).encode() for name, value in record.headers]
        # A message about a table has its REPL_KEY there already.
        return b"".join((head, *(line for line in told if line not in head), end, rest, b"\n"))

    def end(self, entries: Sequence[StateEntry], *, is_empty: bool) -> bytes:
        """Return the comment that says where the pipeline stands."""
        text = json.dumps([[entry.key, entry.value] for entry in entries]).translate(_ESCAPED)
        comment = _BEGIN + self.position_topic.encode() + b" " + text.encode() + _END
        if not is_empty:
            return comment
        return write_message(Message(Head(Command.REPLICATION, self.position_topic))) + b"\n" + comment

    def entries_in(self, content: bytes, where: str) -> Sequence[tuple[str, bytes | None]] | None:
        """Return the entries in the comment at the end of a file; None where it is not this pipeline's."""
        begin = content.rfind(_BEGIN + self.position_topic.encode() + b" ")
        if begin < 0 or not content.endswith(_END):
            return None
        text = content[begin + len(_BEGIN) + len(self.position_topic) + 1 : -len(_END)]
        try:
            entries = json.loads(text)
            return [(key, None if value is None else json.dumps(value).encode()) for key, value in entries]
        except (ValueError, TypeError):
            return None
