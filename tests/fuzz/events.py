"""Real events of seven connectors, mutated, with schemas, without, and in Avro: `python -m tests.fuzz.events`.

An event must come with the value that it has, or be refused in one clear line that holds nothing of its row. What it
has is told twice: by its schema, and by the types that the database itself gives its columns. Where nobody tells it,
a column of a target chosen at random must not make another value of it. Single events and many at once say the same.
"""

from __future__ import annotations

import argparse
import base64
import json
import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from penstock.change import TableName
from penstock.errors import PenstockError
from penstock.formats.debezium.avro import AvroMessages
from penstock.formats.debezium.bulk import BulkDecoder
from penstock.formats.debezium.declared import DeclaredModes
from penstock.formats.debezium.decode import DataEvent, DecodeSettings, RecordDecoder
from penstock.formats.debezium.record import TopicRecord, read_line
from penstock.logical import LogicalType
from penstock.schema import Column, TableSchema
from penstock.sources.debezium.connector import DebeziumConnector
from penstock.sources.debezium.log import LogLayout, Partition
from penstock.sources.debezium.tables import Tables
from tests.fuzz.history import Result
from tests.properties.test_event_types import TARGETS
from tests.sources.memory_log import MemoryLog

DATA = Path(__file__).parents[1] / "data" / "debezium"

RECORDED = {"mysql": "mysql", "mariadb": "mysql", "informix": "db2", "oracle": "oracle", "sqlserver": "sqlserver"}
RECORDED |= {"db2": "db2", "postgresql": "postgres"}
"""Whose events those of a connector are made of."""

MODES = DeclaredModes(arrays="postgres")
SECRET = "S3cret~Row"
"""Put into some texts; no message may repeat it."""

ODD: list[Any] = [
    *(None, True, False, 0, -1, 1, 2**31, -(2**31) - 1, 2**63, -(2**63) - 1, 10**40, 1.5, -0.0, 1e308),
    *("", " ", SECRET, "NaN", "Infinity", "-infinity", "AJY=", "1250", "12.50", "deadbeef", "\u0000", "😀", "0x1"),
    *("2024-02-30", "2024-02-29T24:00:00Z", "2024-02-29T11:45:59.123456789+05:30", "24:00:00", "-838:59:59", "P1M"),
    *(
        [],
        [None],
        [[1], 2],
        {},
        {"scale": 1, "value": "Hw=="},
        {"scale": 10**9, "value": "AQ=="},
        {"x": 1, "y": SECRET},
    ),
    *("__debezium_unavailable_value", {"schema": 1, "payload": SECRET}),
]


@dataclass(frozen=True)
class Pair:
    """One event, with a schema and without."""

    typed: TopicRecord
    plain: TopicRecord


@cache
def types_of(file: str) -> Mapping[str, Mapping[str, str]]:
    """The types of each table's columns, by a pattern of the table."""
    told: dict[str, dict[str, str]] = {}
    for line in (DATA / f"{file}_3.6.rows.jsonl").read_text().splitlines():
        one = json.loads(line)
        if "columns" in one:
            schema, table = one["table"].rsplit(".", 2)[-2:]
            # A type that only one database has, and that is text elsewhere, need not be told.
            columns = {column["name"]: column["type"] for column in one["columns"]}
            told[f'"{schema}"."{table}"'] = {name: type_ for name, type_ in columns.items() if _is_known(type_)}
    return told


def _is_known(type_: str) -> bool:
    from penstock.formats.debezium.source_types import told_of

    try:
        told_of(type_, "postgresql", MODES)
    except ValueError:
        return False
    return True


@cache
def pairs(connector: str) -> Sequence[Pair]:
    """The recorded changes of rows of a connector."""
    found = []
    lines = (DATA / f"{RECORDED[connector]}_3.6.schemas.jsonl").read_bytes().splitlines()
    for number, line in enumerate(lines, 1):
        typed = read_line(line, file="recorded", number=number)
        payload = _payload(typed.value)
        if isinstance(payload, dict) and {"op", "source", "before", "after"} <= payload.keys():
            key = typed.key and json.dumps(_payload(typed.key)).encode()
            found.append(Pair(typed, TopicRecord(typed.topic, key, json.dumps(payload).encode(), typed.headers, 0, 0)))
    return found


def _payload(value: bytes | None) -> Any:
    parsed = json.loads(value or b"null")
    return parsed["payload"] if isinstance(parsed, dict) and parsed.keys() == {"schema", "payload"} else parsed


def mutated(pair: Pair, connector: str, chance: random.Random) -> Pair:
    """The same change with other values in both forms, or with other members."""
    typed, plain = json.loads(pair.typed.value or b"null"), json.loads(pair.plain.value or b"null")
    state = chance.getrandbits(64)
    for payload in (typed["payload"], plain):
        _mutate(payload, connector, random.Random(state))
    return Pair(_with_value(pair.typed, typed), _with_value(pair.plain, plain))


def _mutate(payload: dict[str, Any], connector: str, chance: random.Random) -> None:
    payload["source"]["connector"] = connector
    for _ in range(chance.choice([0, 1, 1, 2, 4])):
        row = payload.get(chance.choice(["before", "after"]))
        where: Any = (
            row if isinstance(row, dict) and chance.random() < 0.9 else chance.choice([payload, payload.get("source")])
        )
        if not where or not isinstance(where, dict):
            continue
        name = chance.choice(sorted(where))
        old = where[name]
        match chance.randrange(6):
            case 0 if type(old) is int:
                where[name] = old + chance.choice([-1, 1]) * 10 ** chance.randrange(20)
            case 1 if type(old) is str and old:
                at = chance.randrange(len(old))
                where[name] = old[:at] + chance.choice(["", "A", "=", "Z", "9", SECRET]) + old[at + 1 :]
            case 2:
                del where[name]
            case 3:
                where[name] = [old]
            case 4:
                where[chance.choice(sorted(where))] = old
            case _:
                where[name] = chance.choice(ODD)
        # Names of tables are no secret.
        if where is not row and SECRET in str(where.get(name)):
            where[name] = old


def _with_value(record: TopicRecord, value: Any) -> TopicRecord:
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode(errors="surrogatepass")
    return TopicRecord(record.topic, record.key, text, record.headers, 0, record.offset or 0)


_SIGNS = b'0"{}[],:\x00\xff\\ue9'


def broken(record: TopicRecord, chance: random.Random) -> TopicRecord:
    """The same record with some bytes of its key or value changed."""
    key, value = record.key, bytearray(record.value or b"")
    for _ in range(chance.randint(1, 3)):
        if value:
            at = chance.randrange(len(value))
            value[at : at + chance.randint(0, 3)] = bytes(
                chance.choices(b'0"{}[],:\x00\xff\\ue9', k=chance.randint(0, 3))
            )
    if key and chance.random() < 0.3:
        key = key[: chance.randrange(len(key))]
    return TopicRecord(record.topic, key, bytes(value), record.headers, 0, record.offset or 0)


@cache
def avro_records() -> Sequence[TopicRecord]:
    """Recorded messages in Avro."""
    found = []
    for line in (DATA / "postgres_3.6.avro.jsonl").read_text().splitlines():
        one = json.loads(line)
        key, value = (None if one[part] is None else base64.b64decode(one[part]) for part in ("key", "value"))
        found.append(TopicRecord(one["topic"], key, value, (), 0, 0))
    return found


@cache
def avro_schemas() -> Mapping[str, str]:
    return {
        id_: json.dumps(one) for id_, one in json.loads((DATA / "postgres_3.6.avro.schemas.json").read_text()).items()
    }


def avro_schema(id_: int | str) -> str:
    """The text of a registered schema; an id that there is not is the registry's error."""
    if str(id_) not in avro_schemas():
        raise PenstockError("the schema registry does not know the schema")
    return avro_schemas()[str(id_)]


class Play:
    """Rounds of one seed."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.result = Result()

    def round(self) -> None:
        """One event of each connector, one of broken bytes, one of Avro, and a plan."""
        for connector, file in RECORDED.items():
            pair = mutated(self.chance.choice(pairs(connector)), connector, self.chance)
            self._compare(pair, connector, types_of(file))
            self._plan(pair.plain, types_of(file))
            self._read(RecordDecoder(DecodeSettings(modes=MODES)), broken(pair.typed, self.chance), "broken")
        record = self.chance.choice(avro_records())
        parser = AvroMessages(avro_schema)
        self._read(RecordDecoder(DecodeSettings(modes=MODES), parser), record, "avro")
        self._read(RecordDecoder(DecodeSettings(modes=MODES), parser), broken(record, self.chance), "broken avro")

    def _compare(self, pair: Pair, connector: str, types: Mapping[str, Mapping[str, str]]) -> None:
        typed = self._read(RecordDecoder(DecodeSettings(columns=types, modes=MODES)), pair.typed, "with a schema")
        told = RecordDecoder(DecodeSettings(columns=types, modes=MODES))
        plain = self._read(told, pair.plain, "told")
        if typed is not None and plain is not None and _are_told(typed, connector, types):
            self._alike(typed, plain, types)
        self._in_bulk(told, pair.plain, plain)
        if plain is None or not _are_told(plain, connector, types):
            return
        target = {name: LogicalType.parse(self.chance.choice(TARGETS)) for name in plain.after or {}}
        untold = DecodeSettings(declared={plain.location.table: target}, modes=MODES)
        guessed = self._read(RecordDecoder(untold), pair.plain, "untold")
        if guessed is not None:
            self._stands(plain, guessed, pair.plain, target)

    def _in_bulk(self, decoder: RecordDecoder, record: TopicRecord, one: DataEvent | None) -> None:
        assert decoder.messages is not None
        try:
            events, _ = BulkDecoder(decoder, decoder.messages).decode([record])
        except PenstockError as exc:
            self._said(str(exc))
            if one is not None:
                self.result.wrong.append(f"many at once are refused, and one is not: {one.location.table}")
            return
        for some in events:
            if one is None or (some.before[0], some.after[0]) != (one.before, one.after):
                self.result.wrong.append(f"many at once differ from one: {one and one.location.table}")

    def _alike(self, typed: DataEvent, plain: DataEvent, types: Mapping[str, Mapping[str, str]]) -> None:
        table = typed.location.table
        told = types[f'"{table.schema}"."{table.name}"']
        for side in ("before", "after"):
            one, other = getattr(typed, side) or {}, getattr(plain, side) or {}
            for name in one.keys() & other.keys() & told.keys():
                if one[name] != other[name] and not _same(one[name], other[name]):
                    self.result.wrong.append(f"told: {table}.{name}: {one[name]!r} is {other[name]!r}")

    def _stands(
        self, told: DataEvent, guessed: DataEvent, record: TopicRecord, target: Mapping[str, LogicalType]
    ) -> None:
        """Hold what a target's column made of a value against the value: the same, or as it stands there."""
        # What a row lacks of its key is taken from there.
        key = _payload(record.key) if record.key else None
        row = (key if isinstance(key, dict) else {}) | (_payload(record.value).get("after") or {})
        for name, made in (guessed.after or {}).items():
            right = (told.after or {}).get(name)
            stands = row.get(name)
            if (
                name not in (told.after or {})
                or made in (None, right, stands, json.dumps(stands))
                or _same(made, right)
                or _same(made, str(stands))
            ):
                continue
            kind = str(target[name].kind) if name in target else ""
            if isinstance(stands, bool | dict | list) or kind in ("array", "boolean"):
                continue
            self.result.wrong.append(f"untold in {target.get(name)}: {stands!r} is {made!r}, and was {right!r}")

    def _plan(self, record: TopicRecord, types: Mapping[str, Mapping[str, str]]) -> None:
        told = types if self.chance.random() < 0.5 else {}

        def described(name: TableName) -> TableSchema:
            columns = (_payload(record.value).get("after") or {}) if record.value else {}
            made = [Column.of(one, LogicalType.parse(self.chance.choice(TARGETS))) for one in columns]
            return TableSchema(name, tuple(made))

        try:
            tables = Tables(DecodeSettings(columns=told, modes=MODES), "p", skips=False, described=described)
            log = MemoryLog({Partition(record.topic, 0): [record]})
            side = DebeziumConnector(log, LogLayout("p.transaction"), tables, "p")
            plan = side.plan([version.table.name for version in tables.versions()] or side.match(["*.*"]), [])
            for fault in plan.faults:
                self._said(str(fault))
            self.result.outcomes["plans"] += 1
        except PenstockError as exc:
            self._said(str(exc))
            self.result.outcomes["plans refused"] += 1
        except Exception as exc:
            self.result.wrong.append(f"plan: {type(exc).__name__}: {str(exc)[:200]}")

    def _read(self, decoder: RecordDecoder, record: TopicRecord, what: str) -> DataEvent | None:
        try:
            found = decoder.decode(record)
        except PenstockError as exc:
            self._said(str(exc))
            self.result.outcomes[f"{what} refused"] += 1
            return None
        except Exception as exc:
            self.result.wrong.append(f"{what}: {type(exc).__name__}: {str(exc)[:200]}")
            return None
        self.result.outcomes[f"{what} read"] += 1
        return found if isinstance(found, DataEvent) else None

    def _said(self, line: str) -> None:
        if "\n" in line or SECRET in line:
            self.result.wrong.append(f"not one clear line: {line[:200]!r}")


def _are_told(event: DataEvent, connector: str, types: Mapping[str, Mapping[str, str]]) -> bool:
    """Whether the types are of the event's table: a mutation may have given it another one, or another connector."""
    table = event.location.table
    # The types of this one were altered.
    if table.name == "evolving":
        return False
    return event.location.source.connector == connector and f'"{table.schema}"."{table.name}"' in types


def _same(one: str | None, other: str | None) -> bool:
    """Whether two texts are of one number, or of one time."""
    try:
        return one is not None and other is not None and float(one) == float(other)
    except (ValueError, OverflowError):
        pass
    plain = [(text or "").rstrip("Z").replace("+00:00", "").rstrip("0").rstrip(".") for text in (one, other)]
    return plain[0] == plain[1]


def rounds(seed: int) -> Iterator[Play]:
    while True:
        yield Play(seed)
        seed += 1


def main(arguments: Sequence[str], say: Callable[[str], None] = print) -> int:
    """Play rounds until the time is up; returns 1 if a value was changed, or an error was none of ours."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.events", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--rounds", type=int, default=0)
    parser.add_argument("--seed", type=int, default=None)
    given = parser.parse_args(arguments)
    seed = given.seed if given.seed is not None else random.SystemRandom().randrange(1_000_000)
    until, total = time.monotonic() + given.minutes * 60, Result()
    for number, play in enumerate(rounds(seed)):
        if number >= given.rounds if given.rounds else time.monotonic() >= until:
            break
        play.round()
        if play.result.wrong and len(total.wrong) < 10:
            say(f"again: python -m tests.fuzz.events --rounds 1 --seed {seed + number}")
        total.outcomes += play.result.outcomes
        total.wrong += play.result.wrong
    say(total.report())
    return 1 if total.wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
