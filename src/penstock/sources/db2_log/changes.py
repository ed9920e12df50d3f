"""Changes: the rows of a committed transaction with their values, those of LOBs among them."""

from __future__ import annotations

import base64
import struct
from dataclasses import dataclass, field
from functools import cache

from penstock.change import Change, Op
from penstock.errors import OperatorError
from penstock.sources.db2_log.catalog import Catalog, Db2Table
from penstock.sources.db2_log.framing import Level
from penstock.sources.db2_log.rows import Place, RowDecoder, RowError, Value
from penstock.sources.db2_log.transactions import STRINGS, Group, Piece, Row

MOST_LOB_BYTES = 512 * 1024 * 1024
"""A change's values travel as one text: LOBs of a row that have more data together are not replicated."""

_CONCAT = 8
_EYE_CATCHER = 0x12


@dataclass
class Left:
    """How often the value of a column was left out, because the log does not hold it."""

    not_logged: int = 0
    unreplicable: int = 0


@dataclass(frozen=True)
class Decoded:
    """A change, and what it appends to LOBs: column to text, or base64 of bytes."""

    change: Change
    append: dict[str, str] = field(default_factory=dict)


class Decoder:
    """Decodes rows of every table of a catalogue."""

    def __init__(self, catalog: Catalog) -> None:
        """Decode with a catalogue; nothing of a table is worked out before it is met."""
        self.left = Left()
        self._catalog = catalog
        self._decoder = cache(lambda table: RowDecoder(table, catalog))

    def decode(self, row: Row, seq: int) -> Decoded:
        """Return the change that a row's record is.

        An update's `after` holds the columns that changed, or may have. `before` lacks LOBs that lie out of the row.

        Raises:
            MalformedInputError: An image breaks its format, or LOB data does not go with it.
            OperatorError: The log does not hold a value, or values of a type cannot be read.
        """
        table, append = row.table, dict[str, str]()
        try:
            decoder = self._decoder(table)
            before = None if row.before is None else decoder.decode(row.before)
            after = None if row.after is None else decoder.decode(row.after)
            if after is not None:
                append = self._fill(row, decoder, before, after)
        except RowError as exc:
            row.record.refuse(f"cannot read {row.op} of {table.name}: {exc}")
        old = None if before is None else _in_row(before)
        new = None if after is None else _in_row(after)
        if row.op is Op.UPDATE and old is not None and new is not None:
            new = {name: value for name, value in new.items() if name not in old or old[name] != value}
        return Decoded(Change(seq, row.op, table.name, table.number, old, new), append)

    def held_bytes(self, row: Row) -> int:
        """Return how many bytes of LOB data are held in memory while a row is decoded."""
        size = group_size(row.group)
        return 0 if size > MOST_LOB_BYTES else size

    def _fill(
        self, row: Row, decoder: RowDecoder, before: dict[str, Value] | None, after: dict[str, Value]
    ) -> dict[str, str]:
        """Put the values that are out of row into `after`; returns what is appended to others."""
        pieces: dict[int, list[Piece]] = {}
        for piece in row.group.pieces if row.group else ():
            pieces.setdefault(piece.column, []).append(piece)
        strings = pieces.pop(STRINGS, None)
        append: dict[str, str] = {}
        is_too_large = group_size(row.group) > MOST_LOB_BYTES
        used = False
        parts: list[bytes] | None = None
        for number, column in enumerate(row.table.columns):
            name, found = column.name, pieces.pop(number, None)
            if after[name] is not Place.OUT:
                if found:
                    raise RowError(f"column {name!r} lies in the row, and LOB data of it was logged")
                continue
            if not column.is_lob:
                if strings is not None:
                    parts = parts or self._strings(strings, row.table)
                    used = True
                    if not parts[number]:
                        raise RowError(f"column {name!r} is out of row, and nothing of it was logged")
                    after[name] = self._text(decoder, number, parts[number])
                elif row.op is not Op.UPDATE:
                    raise RowError(f"column {name!r} is out of row, and nothing of it was logged")
                continue
            if found is None:
                self._missing(row, name)
                continue
            if len({(piece.is_amount, piece.original == _CONCAT) for piece in found}) > 1:
                raise RowError(f"LOB data of column {name!r} is of more than one kind")
            if found[0].is_amount:
                self.left.not_logged += 1
                continue
            if is_too_large:
                size = sum(len(piece.data) for piece in found)
                self.unreplicable(row, name, f"{size} bytes of it were logged, and a row may have {MOST_LOB_BYTES}")
                continue
            data = b"".join(piece.data for piece in found)
            if found[0].original != _CONCAT:
                after[name] = self._text(decoder, number, data)
                continue
            old = before[name] if before is not None else None
            if old is None:
                raise RowError(f"LOB data was appended to column {name!r}, which had no value")
            if old is Place.OUT:
                append[name] = self._text(decoder, number, data)
            elif column.type == "BLOB":
                after[name] = base64.b64encode(base64.b64decode(old) + data).decode()
            else:
                after[name] = old + self._text(decoder, number, data)
        if strings is not None and not used:
            raise RowError("strings were logged out of row, and all of them lie in the row")
        return append

    def _missing(self, row: Row, name: str) -> None:
        if self._catalog.form.level is Level.V10:
            if row.op is Op.UPDATE:
                # It did not change.
                return
            raise RowError(f"column {name!r} is out of row, and nothing of it was logged")
        # Before 10.1 nobody who reads the log is shown LOB data: whether an update changed it is not told.
        self.unreplicable(row, name, "Db2 9.7 does not show LOB data that lies out of the row")

    def unreplicable(self, row: Row, name: str, why: str) -> None:
        """Note that a value is left out, or raise an `OperatorError` where that is not allowed."""
        if not self._catalog.leaves_out:
            raise OperatorError(
                f"column {name!r} of {row.table.name} cannot be replicated: {why}",
                where=f"{row.record.name}, offset {row.record.offset}",
                do="set on_unreplicable to leave_column_out in the catalogue, or leave the table out",
            )
        self.left.unreplicable += 1

    def _text(self, decoder: RowDecoder, number: int, data: bytes) -> str:
        try:
            return decoder.texts[number](data)
        except ValueError as exc:
            raise RowError(f"the data of column {decoder.table.columns[number].name!r} is no text") from exc

    def _strings(self, pieces: list[Piece], table: Db2Table) -> list[bytes]:
        """Return the strings of a consolidated structure, by column; those that lie in the row are empty."""
        if len({(piece.is_amount, piece.original) for piece in pieces}) > 1 or pieces[0].is_amount:
            raise RowError("strings out of row were logged in more than one way")
        whole = b"".join(piece.data for piece in pieces)
        count = len(table.columns) + 1
        if len(whole) < 4 + 4 * count or whole[0] != _EYE_CATCHER or int.from_bytes(whole[1:4], "big") != len(whole):
            raise RowError("strings out of row do not begin as they must, or some of them are missing")
        data = whole[4 + 4 * count :]
        for order in (self._catalog.form.endian, ">"):
            at = struct.unpack_from(f"{order}{count}I", whole, 4)
            if list(at) == sorted(at) and at[-1] - at[0] == len(data):
                return [data[at[n] - at[0] : at[n + 1] - at[0]] for n in range(count - 1)]
        raise RowError("strings out of row are not of as many columns as the catalogue has")


def group_size(group: Group | None) -> int:
    """How many bytes of LOB data a row has."""
    return 0 if group is None else sum(len(piece.data) for piece in group.pieces)


def _in_row(values: dict[str, Value]) -> dict[str, str | None]:
    return {name: value for name, value in values.items() if not isinstance(value, Place)}
