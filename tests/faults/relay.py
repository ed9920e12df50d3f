"""Two pipelines one behind the other: one publishes a source as change files, the other applies the files to a target.

Each is a program of its own, and may be killed at any moment. One witness looks for half a transaction at the target,
another one for half a record, or half a transaction, in the archive.
"""

from __future__ import annotations

import random
import re
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

import psycopg
import pyarrow as pa

from penstock import change as c
from penstock.archive import Archive
from penstock.errors import PenstockError
from penstock.formats.archive_log import ArchiveRecord
from penstock.sources.change_files.reader import FileReader
from penstock.storage import open_storage
from tests.faults.watching import Watcher
from tests.program import Program, Running, await_true

_PUBLISHING = """\
version: 1
name: {name}
connections: {{shop: {{type: postgres, url: "${{env:SHOP_URL}}"}}}}
capture: {{source: trigger_queue, connection: shop, tables: ["public.*"]}}
publish: {{to: files, path: {archive}, format: {format}, max_age_s: 0.3}}
spark: {{spark.local.dir: {scratch}}}
"""

_APPLYING = """\
version: 1
name: {name}
connections: {{copy: {{type: postgres, url: "${{env:COPY_URL}}"}}}}
capture: {{source: change_files, path: {archive}, tables: ["public.*"]}}
apply: {{connection: copy, parallelism: 2}}
spark: {{spark.local.dir: {scratch}}}
"""

_PATIENCE_S = 240
"""The most that anything may take on a slow machine; what has not come about by then never will."""


class Half:
    """One of the two pipelines, and its runs."""

    def __init__(self, name: str, program: Program) -> None:
        self.name = name
        self.program = program
        self.runs: list[Running] = []
        self.kills: Counter[str] = Counter()
        """By what the run was about."""

    @property
    def run(self) -> Running:
        """The latest one."""
        return self.runs[-1]

    def set_up(self) -> None:
        done = self.program("setup")
        assert done.code == 0, done.err

    def start(self) -> None:
        self.runs.append(self.program.start("run"))

    def await_following(self) -> None:
        self.run.await_line("following", _PATIENCE_S)

    def kill(self) -> None:
        """Kill the whole run: the driver, Java and the workers."""
        assert self.run.is_alive, self.run.said
        self.run.kill()
        told = re.findall(r"INFO +(copying|following)", self.run.said)
        self.kills[told[-1] if told else "starting"] += 1

    def stop(self) -> None:
        """Tell the run to stop, and see that it does so in good order."""
        assert self.run.end() == 0, self.run.said

    def assert_quiet(self) -> None:
        """Whatever was done to the runs, none of them has met an error that nobody foresaw."""
        for run in self.runs:
            assert "Traceback" not in run.said, run.said
            assert "penstock:" not in run.said, run.said


class Relay:
    """The two pipelines from a source to a target, and the archive between them, while the block runs."""

    def __init__(self, folder: Path, source_url: str, target_url: str, *, name: str, chance: random.Random) -> None:
        """Prepare; nothing is set up yet. The format of the files is left to chance."""
        self.source_url, self.target_url = source_url, target_url
        self.archive_folder = folder / "archive"
        self.format = chance.choice(["changes", "parquet"])
        self._name = name
        self._chance = chance
        self.publishing = self._half(folder / "publishing", _PUBLISHING)
        self.applying = self._half(folder / "applying", _APPLYING)
        self.halves = (self.publishing, self.applying)
        self.archive_witness = ArchiveWitness(self.archive)
        self._stack = ExitStack()

    def __enter__(self) -> Relay:
        with ExitStack() as stack:
            stack.callback(self._end_runs)
            self.publishing.set_up()
            stack.enter_context(self.archive_witness)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, exc, trace)

    @property
    def archive(self) -> Archive:
        """The archive as somebody sees it who opens it now."""
        return Archive(open_storage(str(self.archive_folder)))

    def start(self, *, kill_copies: bool = False) -> None:
        """Start both halves; the first one copies, the other puts the copy in place. Return once that is done.

        Args:
            kill_copies: Kill each half once while it is about that.
        """
        self.publishing.start()
        if kill_copies:
            self._kill_copy(self.publishing)
        await_true(self._is_published, _PATIENCE_S, lambda: self.publishing.run.said)
        self.applying.set_up()
        self.applying.start()
        if kill_copies:
            self._kill_copy(self.applying)
        await_true(self._is_in_place, _PATIENCE_S, lambda: self.applying.run.said)

    def kill(self, half: Half, *, while_starting: bool = False) -> None:
        """Kill a half at a random moment, of its work or of its beginning, and start it again."""
        if while_starting:
            time.sleep(self._chance.uniform(0, 6))
        else:
            half.await_following()
            time.sleep(self._chance.uniform(0, 3))
        half.kill()
        time.sleep(self._chance.uniform(0, 1))
        half.start()

    def kill_often(self, *, each: int) -> None:
        """Kill each half so many times, in random order; now and then twice in a row before it works again."""
        victims = [half for half in self.halves for _ in range(each)]
        self._chance.shuffle(victims)
        for victim in victims:
            self.kill(victim, while_starting=self._chance.random() < 0.25)

    def stop(self) -> None:
        """Stop both halves in good order."""
        for half in self.halves:
            half.await_following()
            half.stop()
            half.assert_quiet()

    def await_true(self, is_true: Callable[[], bool]) -> None:
        """Wait until something holds, which only runs that live can bring about."""
        await_true(
            lambda: is_true() or not all(half.run.is_alive for half in self.halves),
            _PATIENCE_S,
            lambda: "\n".join(half.run.said for half in self.halves),
        )
        assert all(half.run.is_alive for half in self.halves), [half.run.said for half in self.halves]

    def errors(self) -> int:
        """Entries of the error queue, errors and conflicts at the target."""
        with psycopg.connect(self.target_url) as connection:
            row = connection.execute(
                "SELECT (SELECT count(*) FROM penstock.error) + (SELECT sum(errors + conflicts) FROM penstock.lane)"
            ).fetchone()
            assert row is not None
            return int(row[0])

    def left_behind(self) -> int:
        """How many files killed runs have left: half written ones, and data files that no record names."""
        named: set[str] = set()
        for record in self.archive.records():
            named.update(file.name for file in record.files)
            named.update(file.name for copy in record.copies for file in copy.files)
        written = (path for folder in ("changes", "copies") for path in (self.archive_folder / folder).iterdir())
        unnamed = {path for path in written if f"{path.parent.name}/{path.name}" not in named}
        return len(unnamed | set((self.archive_folder / "log").glob(".*")))

    def report(self) -> str:
        """The kills by half and by what the run was about."""
        lines = [
            f"{half.name:<12}{half.kills.total():>3} kills: "
            + ", ".join(f"{number} while {at}" for at, number in half.kills.most_common())
            for half in self.halves
        ]
        witness = self.archive_witness
        lines.append(
            f"archive     {self.format}, {witness.records:,} records, {witness.transactions:,} transactions,"
            f" {self.left_behind()} files left behind by killed runs, {len(witness.torn)} torn"
        )
        return "\n".join(lines)

    def _half(self, folder: Path, text: str) -> Half:
        folder.mkdir()
        program = Program(folder, self.source_url, self.target_url, name=self._name)
        content = text.format(name=self._name, archive=self.archive_folder, format=self.format, scratch=folder)
        (folder / "pipeline.yaml").write_text(content)
        return Half(folder.name, program)

    def _kill_copy(self, half: Half) -> None:
        half.run.await_line("copying", _PATIENCE_S)
        time.sleep(self._chance.uniform(0, 0.5))
        half.kill()
        half.start()

    def _is_published(self) -> bool:
        assert self.publishing.run.is_alive, self.publishing.run.said
        return bool(self.archive.newest_definitions().copied)

    def _is_in_place(self) -> bool:
        assert self.applying.run.is_alive, self.applying.run.said
        tables = len(self.archive.newest_definitions().copied)
        with psycopg.connect(self.target_url) as connection:
            return connection.execute("SELECT FROM penstock.instantiation WHERE state = 'READY'").rowcount == tables

    def _end_runs(self) -> None:
        for half in self.halves:
            for run in half.runs:
                run.__exit__()


class ArchiveWitness(Watcher):
    """Reads an archive all the time, as a program does that has nothing to do with its writer.

    Attributes:
        records, transactions: How many it has read, whole.
        torn: What it has found that is not whole, or there twice.
    """

    def __init__(self, archive: Archive) -> None:
        super().__init__("archive witness")
        self._archive = archive
        self._reader = FileReader(archive)
        self._seen: set[str] = set()
        self.records = 0
        self.transactions = 0
        self.torn: list[str] = []

    def watch(self, ended: threading.Event) -> None:
        """Read record after record, and all that they name, until told to end."""
        while True:
            # Whoever reads once more afterwards has read it all.
            is_last = ended.wait(0.1)
            self._read_on()
            if is_last:
                return

    def assert_whole(self) -> None:
        """It has read something, and nothing that was not whole."""
        assert self.failure is None, self.failure
        assert self.transactions > 0
        assert not self.torn, self.torn[:5]

    def _read_on(self) -> None:
        try:
            for record in self._archive.records(self.records + 1):
                for copy in record.copies:
                    for file in copy.files:
                        self._archive.read_file(file)
                batches = self._reader.read_files(record.files, record.after, record.end)
                self._look_at(record, pa.Table.from_batches(batches, c.ARROW_SCHEMA))
                self.records = record.number
        except PenstockError as exc:
            # A record, or a file that a record names, is not whole, or is not there.
            self.torn.append(str(exc))

    def _look_at(self, record: ArchiveRecord, rows: pa.Table) -> None:
        """Every transaction of a record is there whole, and in no record before."""
        seqs: dict[str, list[int]] = {}
        sizes: dict[str, int] = {}
        columns = (rows[name].to_pylist() for name in (c.TXN_ID, c.CHANGE_SEQ, c.TXN_CHANGES))
        for txn, seq, size in zip(*columns, strict=True):
            seqs.setdefault(txn, []).append(seq)
            sizes[txn] = size
        torn = [txn for txn, found in seqs.items() if found != list(range(sizes[txn]))]
        doubled = seqs.keys() & self._seen
        self.torn += [f"transaction {txn} of record {record.number} is torn" for txn in torn]
        self.torn += [f"transaction {txn} of record {record.number} is there already" for txn in doubled]
        self._seen |= seqs.keys()
        self.transactions += len(seqs)
        if len(seqs) != len(record.transactions):
            self.torn.append(f"record {record.number} counts {len(record.transactions)}, and holds {len(seqs)}")
