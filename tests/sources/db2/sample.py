"""The sample of Db2's log in examples/db2: `python -m tests.sources.db2.sample` writes it anew."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

from tests.sources.db2.encoder import Log, Varying, image

FOLDER = Path(__file__).parents[3] / "examples" / "db2" / "log"


def _table(name: str, table_id: int, *columns: dict[str, Any]) -> dict[str, Any]:
    return {"schema": "APP", "table": name, "tablespace_id": 3, "table_id": table_id, "columns": list(columns)}


CATALOG = [
    {
        "id": "SAMPLE since 2026-11-01",
        "level": "10.1",
        "framing": "filter",
        "byte_order": "little",
        "encoding": "utf-8",
    },
    _table(
        "CUSTOMER",
        22,
        {"name": "ID", "type": "INTEGER", "key_seq": 1},
        {"name": "NAME", "type": "VARCHAR", "length": 20},
    ),
    _table(
        "ORDERS",
        23,
        {"name": "ID", "type": "INTEGER", "key_seq": 1},
        {"name": "CUSTOMER", "type": "INTEGER"},
        {"name": "STATE", "type": "VARCHAR", "length": 10},
    ),
]


def files() -> dict[str, bytes]:
    """What the folder holds: the catalogue and one buffer with three transactions, of which one is rolled back."""
    log = Log()

    def customer(number: int, name: str) -> bytes:
        return image([struct.pack("<i", number), Varying(name.encode())])

    def order(number: int, of: int, state: str | None) -> bytes:
        return image([struct.pack("<i", number), struct.pack("<i", of), Varying(state and state.encode())])

    log.table = (3, 22)
    log.insert(1, 1, customer(1, "Ada"))
    log.table = (3, 23)
    log.insert(1, 2, order(1, 1, "new"))
    log.insert(2, 3, order(2, 1, "lost"))
    log.commit(1)
    log.abort(2)
    log.update(3, 2, order(1, 1, "new"), order(1, 1, "paid"))
    log.commit(3, at_s=1_767_225_605)
    catalog = "".join(json.dumps(one) + "\n" for one in CATALOG)
    return {"catalog.json": catalog.encode(), "000000001.db2log": b"".join(log.buffers())}


def main() -> None:
    """Write them."""
    for name, content in files().items():
        (FOLDER / name).write_bytes(content)


if __name__ == "__main__":
    main()
