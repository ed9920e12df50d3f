"""Events with schemas as a sample: what the rows of each table are where messages come without them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import orjson

from penstock.change import TableName
from penstock.errors import ConfigError, MalformedInputError
from penstock.formats.debezium.decode import RecordDecoder
from penstock.formats.debezium.envelope import ChangeLocation
from penstock.formats.debezium.record import TopicRecord, read_line
from penstock.formats.debezium.schema import ConnectSchema


def row_schemas(lines: Iterable[bytes], *, file: str) -> Mapping[TableName, str]:
    """Take the schemas of rows from lines that hold an event each: a record, as `read_line` has it, or its value.

    Of several events of a table the last one counts.

    Returns:
        The schema of each table's row, as JSON.

    Raises:
        MalformedInputError: A line is not an event.
        ConfigError: No event has a schema.
    """
    decoder, found = RecordDecoder(), dict[TableName, str]()
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        seen, schema = decoder.scan(_record(line, file, number))
        if isinstance(seen, ChangeLocation) and isinstance(schema, ConnectSchema):
            found[seen.table] = orjson.dumps(schema.to_json()).decode()
    if not found:
        raise ConfigError(
            f"no event of {file} has a schema",
            do="name a file of events that the connector has written with schemas, one a line",
        )
    return found


def _record(line: bytes, file: str, number: int) -> TopicRecord:
    try:
        return read_line(line, file=file, number=number)
    except MalformedInputError:
        return TopicRecord("", None, line, file=file, line=number)
