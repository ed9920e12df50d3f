"""Buffers of Db2's log that are not as they should be: `python -m tests.fuzz.db2 --minutes 60`.

Records that an encoder has written, or those of the sheet, are cut, flipped, doubled, left out, put in other places and
mixed with garbage. Each buffer is decoded within seconds and little memory, or refused by one error that names file and
offset; what is read in bulk is what is read one by one; and what is brought of LOBs is what is read of them whole.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import signal
import time
from collections import Counter
from typing import NoReturn

from penstock.errors import MalformedInputError, OperatorError
from tests.sources.db2.brought import brought
from tests.sources.db2.encoder import Log
from tests.sources.db2.test_bulk import EVERY, a_row, assert_same
from tests.sources.db2.test_examples import APPENDED, INSERTED, ROLLED_BACK, T1, catalog_of, decode
from tests.sources.db2.test_round_trip import RECORDS, TABLE

_MOST_BYTES = 2 * 1024**3
_LONGEST_S = 10


def _plain() -> list[bytes]:
    """Rows of every type, in transactions that are read in bulk."""
    log = Log()
    for number in range(12):
        log.insert(number % 2, number, a_row(number))
        log.update(number % 2, number, a_row(number), a_row(number + 1))
        if number % 3 == 0:
            log.delete(number % 2, number, a_row(number + 1))
    log.commit(0)
    log.commit(1)
    return log.records


_STARTS = [(_plain(), EVERY), (RECORDS, TABLE), ([INSERTED], T1), ([ROLLED_BACK], T1), ([APPENDED], T1)]


def main() -> None:
    """Fuzz for so many minutes; an error that is none of ours ends it, with the seed that leads there."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=None, help="Try this one only")
    given = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_AS, (_MOST_BYTES, _MOST_BYTES))
    signal.signal(signal.SIGALRM, _too_long)
    chance = random.SystemRandom()
    end = time.monotonic() + 60 * given.minutes
    outcomes: Counter[str] = Counter()
    while time.monotonic() < end:
        seed = chance.getrandbits(48) if given.seed is None else given.seed
        try:
            outcomes[_try(random.Random(seed))] += 1
        except BaseException:
            print(f"--seed {seed}")
            raise
        if given.seed is not None:
            break
    print(f"{sum(outcomes.values())} buffers")
    for what, count in outcomes.most_common():
        print(f"{count:9}  {what}")


def _too_long(*_: object) -> NoReturn:
    raise TimeoutError(f"a buffer took more than {_LONGEST_S} s")


def _try(chance: random.Random) -> str:
    records, table = chance.choice(_STARTS)
    buffer = _altered(list(records), chance)
    signal.alarm(_LONGEST_S)
    try:
        assert_same([buffer], catalog_of(table))
        decode(buffer, catalog=catalog_of(table))
        said = json.dumps({"id": "SAMPLE"}) + json.dumps(table)
        for value, whole in brought([buffer], said):
            assert value == whole
    except (MalformedInputError, OperatorError) as exc:
        if "1.db2log, offset " not in (exc.where or ""):
            raise
        return "refused"
    finally:
        signal.alarm(0)
    return "decoded"


def _altered(records: list[bytes], chance: random.Random) -> bytes:
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(records)) if records else 0
        match chance.randrange(6):
            case 0 if records:
                records[at] = _flipped(records[at], chance)
            case 1 if records:
                records[at] = records[at][: chance.randrange(len(records[at]) + 1)]
            case 2 if records:
                records.insert(chance.randrange(len(records)), records[at])
            case 3 if records:
                del records[at]
            case 4:
                chance.shuffle(records)
            case _:
                records.insert(at, chance.randbytes(chance.randrange(200)))
    return b"".join(records)


def _flipped(record: bytes, chance: random.Random) -> bytes:
    made = bytearray(record)
    for _ in range(chance.randint(1, 5)):
        if made:
            # Lengths and counts are near the beginning.
            at = min(int(chance.expovariate(1 / 60)), len(made) - 1)
            made[at] ^= 1 << chance.randrange(8)
    return bytes(made)


if __name__ == "__main__":
    main()
