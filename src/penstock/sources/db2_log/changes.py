"""Changes: the rows of a committed transaction with their values, those of LOBs among them."""

from __future__ import annotations

import base64
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

from penstock.change import Change, Op
from penstock.errors import OperatorError
from penstock.external_values import ExternalValue
from penstock.sources.db2_log.catalog import Catalog, Db2Table
from penstock.sources.db2_log.framing import Level
from penstock.sources.db2_log.single_rows import RowDecoder, RowError, Value, ValuePlace
from penstock.sources.db2_log.transactions import STRINGS, LobGroup, LobPiece, Row

MOST_LOB_BYTES = 512 * 1024 * 1024
"""Where all values of a change travel as one text, LOBs of a row that have more data together are not read."""

LARGE_LOB_BYTES = 1024 * 1024
"""A LOB with more data stays in the files of the log until a target is brought it from there."""

PlaceOf = Callable[[Sequence[LobPiece]], str]

_CONCAT = 8
_EYE_CATCHER = 0x12


@dataclass
class OmittedValues:
    """How often the value of a column was left out, because the log does not hold it."""

    not_logged: int = 0
    unreplicable: int = 0


@dataclass(frozen=True)
class Decoded:
    """A change, and what it appends to LOBs: column to text, or base64 of bytes."""

    change: Change
    append: dict[str, str] = field(default_factory=dict)

    @property
    def whole(self) -> Change:
        """The change with what it appends, as apply understands it."""
        if not self.append or self.change.after is None:
            return self.change
        return replace(self.change, after={**self.change.after, **self.append})


class RowChangeDecoder:
    """Decodes rows of every table of a catalogue."""

    def __init__(self, catalog: Catalog, *, place_of: PlaceOf | None = None) -> None:
        """Decode with a catalogue; nothing of a table is worked out before it is met.

        Args:
            place_of: Names the place of a large LOB, which then stays there, and what is appended is told as that;
                None to have every LOB whole in memory.
        """
        self.left = OmittedValues()
        self._place_of = place_of
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
        size = self._held_size(row.group)
        return 0 if size > MOST_LOB_BYTES else size

    def _held_size(self, group: LobGroup | None) -> int:
        return group_size(group) if self._place_of is None else held_size(group)

    def _fill(
        self, row: Row, decoder: RowDecoder, before: dict[str, Value] | None, after: dict[str, Value]
    ) -> dict[str, str]:
        """Put the values that are out of row into `after`; returns what is appended to others."""
        pieces: dict[int, list[LobPiece]] = {}
        for piece in row.group.pieces if row.group else ():
            pieces.setdefault(piece.column, []).append(piece)
        strings = pieces.pop(STRINGS, None)
        append: dict[str, str] = {}
        is_too_large = self._held_size(row.group) > MOST_LOB_BYTES
        used = False
        parts: list[bytes] | None = None
        for number, column in enumerate(row.table.columns):
            name, found = column.name, pieces.pop(number, None)
            if after[name] is not ValuePlace.OUT:
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
            size = sum(piece.size for piece in found)
            if is_too_large and self._stays(size) is None:
                self.unreplicable(row, name, f"{size} bytes of it were logged, and a row may have {MOST_LOB_BYTES}")
                continue
            old = None if before is None else before[name]
            if found[0].original != _CONCAT:
                after[name] = self._lob(decoder, number, found)
            elif old is None:
                raise RowError(f"LOB data was appended to column {name!r}, which had no value")
            elif old is ValuePlace.OUT:
                append[name] = self._lob(decoder, number, found, is_appended=True)
            elif self._stays(size) is not None:
                after[name] = self._lob(decoder, number, found, is_appended=True)
            elif column.type == "BLOB":
                after[name] = base64.b64encode(base64.b64decode(old) + _joined(found)).decode()
            else:
                after[name] = old + self._text(decoder, number, _joined(found))
        if strings is not None and not used:
            raise RowError("strings were logged out of row, and all of them lie in the row")
        return append

    def _stays(self, size: int) -> PlaceOf | None:
        """What names the place of a LOB of so many bytes; None where it does not stay in the files of the log."""
        return self._place_of if size > LARGE_LOB_BYTES else None

    def _lob(self, decoder: RowDecoder, number: int, pieces: list[LobPiece], *, is_appended: bool = False) -> str:
        """Return the value of a LOB, or what is told of it."""
        is_binary, size = decoder.table.columns[number].type == "BLOB", sum(piece.size for piece in pieces)
        if (place_of := self._stays(size)) is not None:
            return ExternalValue.at(place_of(pieces), size, is_binary=is_binary, is_appended=is_appended)
        text = self._text(decoder, number, _joined(pieces))
        return (
            ExternalValue.appending(text, is_binary=is_binary) if is_appended and self._place_of is not None else text
        )

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
            raise RowError(f"the data of column {decoder.table.columns[number].name!r} is not text") from exc

    def _strings(self, pieces: list[LobPiece], table: Db2Table) -> list[bytes]:
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


def group_size(group: LobGroup | None) -> int:
    """How many bytes of LOB data a row has."""
    return 0 if group is None else sum(piece.size for piece in group.pieces)


def held_size(group: LobGroup | None) -> int:
    """How many of these bytes are held in memory where large LOBs stay in the files of the log."""
    sizes: dict[int, int] = {}
    for piece in () if group is None else group.pieces:
        sizes[piece.column] = sizes.get(piece.column, 0) + piece.size
    return sum(size for column, size in sizes.items() if size <= LARGE_LOB_BYTES or column == STRINGS)


def _joined(pieces: list[LobPiece]) -> bytes:
    return b"".join(piece.data for piece in pieces)


def _in_row(values: dict[str, Value]) -> dict[str, str | None]:
    return {name: value for name, value in values.items() if not isinstance(value, ValuePlace)}
