"""LOBs that stay in the files of the log, brought from there, and held against what is read of them whole."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from unittest.mock import patch

import pyarrow as pa

from penstock.external_values import ExternalValue
from penstock.sources.db2_log.catalog import read_catalog
from penstock.sources.db2_log.changes import RowChangeDecoder
from penstock.sources.db2_log.framing import read_records
from penstock.sources.db2_log.lobs import LogValues, place_of
from penstock.sources.db2_log.transactions import Gatherer, RowResolver


@dataclass(frozen=True)
class Held:
    """Implements `storage.Storage`, as far as it is read."""

    files: Mapping[str, bytes]
    label: str = "held"

    def read(self, name: str) -> bytes:
        return self.files[name]

    def names(self, folder: str) -> list[str]:
        return list(self.files)

    def size(self, name: str) -> int | None:
        return len(self.files[name])

    def create(self, name: str, content: pa.Buffer | bytes) -> None:
        raise NotImplementedError

    def check_writable(self, folder: str) -> None:
        raise NotImplementedError


def brought(buffers: Sequence[bytes], catalog: str, *, most: int = 100) -> Iterator[tuple[str | None, str | None]]:
    """Yield for each LOB with more bytes than `most` its value as it is brought, and as it is read whole.

    Raises what reading raises; what is wrong with a text is found in both ways.
    """
    said = read_catalog(catalog, where="catalog.json")
    names = [f"{number:09}.db2log" for number in range(1, len(buffers) + 1)]
    store = LogValues(Held({"catalog.json": catalog.encode(), **dict(zip(names, buffers, strict=True))}))
    gatherer, resolver = Gatherer(said), RowResolver(said)
    whole, here = RowChangeDecoder(said), RowChangeDecoder(said, place_of=place_of)
    records = (r for n, b in zip(names, buffers, strict=True) for r in read_records(b, said.form, n))
    with patch("penstock.sources.db2_log.changes.LARGE_LOB_BYTES", most):
        for committed in gatherer.gather(records):
            for seq, row in enumerate(resolver.resolve(committed)):
                told, expected = here.decode(row, seq).whole, whole.decode(row, seq)
                for name, value in (told.after or {}).items():
                    if isinstance(value, ExternalValue):
                        before = (told.before or {}).get(name) if value.is_appended else None
                        yield _value(value, before, store), expected.whole.after.get(name)  # type: ignore[union-attr]


def _value(told: ExternalValue, before: str | None, store: LogValues) -> str:
    if told.place is None:
        assert told.text is not None
        return told.text
    data = b"".join(store.pieces(told.place))
    if told.is_binary:
        return base64.b64encode(base64.b64decode(before or "") + data).decode()
    return (before or "") + data.decode()
