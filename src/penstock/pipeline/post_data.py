"""Beside a run: what the copy lacks is made once rows are copied, and its sequences are kept in step."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import closing

from penstock.change import TableName
from penstock.database import NativeForm, SequenceValue
from penstock.dialects.sessions import SequenceReader
from penstock.errors import PenstockError, RetryableError
from penstock.events import Event, SourceFacts, tell
from penstock.pipeline.connectors import DatabaseSource, TargetConnector

_EVERY_S = 2.0
"""How often the source is asked where its sequences stand: one query of some hundred microseconds."""

_ANEW_S = 60.0
"""How often to look for sequences that were added."""

_PAUSE_S = 5.0

Warn = Callable[[str, Event, SourceFacts | None], None]


class PostDataWork:
    """Two threads beside a run, one that builds and one that sets sequences. Neither ever ends the run."""

    def __init__(self, source: DatabaseSource, target: TargetConnector, warn: Warn) -> None:
        """Prepare; nothing is opened yet.

        Args:
            warn: Told once of each thing that does not succeed; called by either thread.
        """
        self._source = source
        self._target = target
        self._warn = warn
        self._over = threading.Event()
        self._warned: set[str] = set()
        self._building: threading.Thread | None = None
        self._setting: threading.Thread | None = None
        self._lock = threading.Lock()
        self._is_wanted = False
        self._is_ending = False
        self._copied: Collection[TableName] = ()
        self._stop_building: Callable[[], None] | None = None

    def begin(self, copied: Collection[TableName]) -> None:
        """Begin, or go on with more tables; called whenever a copy is whole."""
        with self._lock:
            self._copied = set(copied)
            self._is_wanted = True
            if self._building is None:
                self._building = self._thread(self._build)
        if self._setting is None:
            self._setting = self._thread(self._set_sequences)

    def end(self, *, is_hurried: bool) -> None:
        """Finish: build to the end, unless the run is in a hurry; an index that is half-built is given up then."""
        self._is_ending = True
        with self._lock:
            building = self._building
        if is_hurried:
            self._over.set()
            if self._stop_building is not None:
                self._stop_building()
        if building is not None:
            building.join()
        self._over.set()
        if self._setting is not None:
            self._setting.join()

    def _thread(self, work: Callable[[], None]) -> threading.Thread:
        thread = threading.Thread(target=work, name="post-data", daemon=True)
        thread.start()
        return thread

    def _build(self) -> None:
        while self._goes_on():
            try:
                with closing(self._target.post_data_builder(self._post_data())) as post_data_builder:
                    self._stop_building = post_data_builder.stop
                    for made in post_data_builder.build(self._copied):
                        if made.reason:
                            self._warn_once(str(made), {"table": str(made.table), "what": made.what})
                        else:
                            tell(Event.POST_DATA_MADE, f"made at the target: {made.what}", {"made": made.what})
            except PenstockError as exc:
                if self._over.is_set():
                    return  # The server was told to give up.
                self._tell(exc)
                # At the end of a run there is no time to wait for a server; the next run builds what is missing.
                if isinstance(exc, RetryableError) and not self._is_ending:
                    self._is_wanted = True
                    self._over.wait(_PAUSE_S)

    def _goes_on(self) -> bool:
        """Whether there is something to be looked for; else the thread ends, and `begin` starts another one."""
        with self._lock:
            goes_on = self._is_wanted and not self._over.is_set()
            self._is_wanted = False
            if not goes_on:
                self._building = None
            return goes_on

    def _set_sequences(self) -> None:
        while not self._over.is_set():
            try:
                form = self._post_data()
                with (
                    closing(self._source.sequence_reader(form)) as reader,
                    closing(self._target.post_data_builder(form)) as post_data_builder,
                ):
                    self._keep_in_step(reader, post_data_builder.set_sequences)
            except PenstockError as exc:
                self._tell(exc)
                self._over.wait(_PAUSE_S)

    def _keep_in_step(
        self, reader: SequenceReader, set_sequences: Callable[[Mapping[TableName, SequenceValue]], object]
    ) -> None:
        """Follow the sequences that there are now; returns when it is time to look for others."""
        known: Mapping[TableName, SequenceValue] | None = None
        until = time.monotonic() + _ANEW_S
        while time.monotonic() < until:
            # After the last look at whether the run is over there is one more round: what was applied is behind it.
            is_last = self._over.wait(0 if known is None else _EVERY_S)
            values = reader.read()
            if values != known:
                set_sequences(values)
                known = values
            if is_last:
                return

    def _post_data(self) -> NativeForm:
        return self._source.post_data(sorted(self._copied))

    def _tell(self, error: PenstockError) -> None:
        self._warn_once(str(error), {"what": error.what, "where": error.where, "do": error.do})

    def _warn_once(self, text: str, facts: SourceFacts) -> None:
        if text not in self._warned:
            self._warned.add(text)
            self._warn(text, Event.NOTE, facts)
