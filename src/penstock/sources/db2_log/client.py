"""The vendor's read-log interface, called through its client library: `db2ReadLog` of Db2 10.1 to 11.5.

Structures are those of its header for programs of 64 bits. **It was not run against a live server**: only against a
library of tests that was written from the same header.
"""

from __future__ import annotations

import ctypes
import struct
from typing import Any, NamedTuple

from penstock.errors import ConfigError, OperatorError, RetryableError
from penstock.sources.db2_log.framing import Lri

_VERSION = 10_010_000
"""That of 10.1, as the header writes versions: 8.1.0.4 is 8010400."""

_READ, _QUERY, _FILTER_ON = 1, 3, 1
_AT_END, _REUSED = 2654, 2653
_ENVIRONMENT, _CONNECTION, _NO_PROMPT, _TERMINATED = 1, 2, 0, -3
_CALLS = ("SQLAllocHandle", "SQLFreeHandle", "SQLDriverConnect", "SQLDisconnect", "SQLGetDiagRec")
_INFO_BYTES = 152
"""Later levels append an identifier to the 128 bytes of earlier ones."""

_END_OF_LOG = (1, 2**64 - 1, 2**64 - 1)

_DO = {
    -2650: "compare the level of the client library with that of the server: 10.1 to 11.5 are known",
    -2651: "set logarchmeth1 to something other than OFF, and back the database up: circular logs cannot be read",
    -2652: "give the collector a smaller --buffer-mib, or more memory",
    -2655: "look which database the archived log files belong to",
    -2656: "look for an archived log file that is damaged",
    -2657: "bring the archived log files back to where logarchmeth1 looks for them, or begin anew, with a copy",
    -1092: "the user needs SYSADM or DBADM",
}


class Returned(NamedTuple):
    """What a call returned.

    Attributes:
        content: The records with their prefixes.
        records: How many these are.
        next: Where the next call begins.
        is_end: Nothing was behind that at this time.
    """

    content: bytes
    records: int
    next: Lri
    is_end: bool


class _Lri(ctypes.Structure):
    _fields_ = (("type", ctypes.c_uint64), ("part1", ctypes.c_uint64), ("part2", ctypes.c_uint64))


class _ReadLog(ctypes.Structure):
    _fields_ = (
        ("action", ctypes.c_uint32),
        ("start", ctypes.POINTER(_Lri)),
        ("end", ctypes.POINTER(_Lri)),
        ("buffer", ctypes.c_void_p),
        ("buffer_size", ctypes.c_uint32),
        ("filter", ctypes.c_uint32),
        ("info", ctypes.c_void_p),
        ("least_required", ctypes.POINTER(_Lri)),
        ("start_time", ctypes.c_void_p),
    )


class _Sqlca(ctypes.Structure):
    _fields_ = (
        ("sqlcaid", ctypes.c_char * 8),
        ("sqlcabc", ctypes.c_int32),
        ("sqlcode", ctypes.c_int32),
        ("sqlerrml", ctypes.c_int16),
        ("sqlerrmc", ctypes.c_char * 70),
        ("sqlerrp", ctypes.c_char * 8),
        ("sqlerrd", ctypes.c_int32 * 6),
        ("sqlwarn", ctypes.c_char * 11),
        ("sqlstate", ctypes.c_char * 5),
    )


class Db2Client:
    """A connection through the client library, which reads the database's log."""

    def __init__(self, connection: str, *, library: str = "libdb2.so.1", buffer_bytes: int = 16 << 20) -> None:
        """Load the library and connect.

        Args:
            connection: Keywords of the vendor's call level interface, `DSN=SAMPLE` or `DATABASE=...;UID=...;PWD=...`.
            library: Name or path of the client library.
            buffer_bytes: At most so much is returned by a call; a record has to fit.

        Raises:
            ConfigError: There is no such library, or it lacks the interface.
            RetryableError: The database cannot be reached, or refuses the user.
        """
        self._library = _load(library)
        self._buffer = ctypes.create_string_buffer(buffer_bytes)
        self._handles: list[tuple[int, ctypes.c_int64]] = []
        self._is_connected = False
        self._connection = self._connect(connection)

    def begin(self) -> Lri:
        """Return `initialLRI`, which a query tells."""
        info, _ = self._call(_QUERY, Lri(0, 0))
        return _lri_at(info, 0)

    def read(self, start: Lri) -> Returned:
        """Return what lies behind a position, with the filter on."""
        info, sqlcode = self._call(_READ, start)
        records, size = struct.unpack_from("=II", info, 96)
        if size > len(self._buffer):
            raise OperatorError(f"db2ReadLog says that it wrote {size} bytes into a buffer of {len(self._buffer)}")
        return Returned(self._buffer.raw[:size], records, _lri_at(info, 48), sqlcode == _AT_END)

    def close(self) -> None:
        """End the connection; errors no longer matter."""
        if self._is_connected:
            self._library.SQLDisconnect(self._connection)
            self._is_connected = False
        while self._handles:
            kind, handle = self._handles.pop()
            self._library.SQLFreeHandle(ctypes.c_int16(kind), handle)

    def _connect(self, connection: str) -> ctypes.c_int64:
        environment = self._handle(_ENVIRONMENT, ctypes.c_int64(0))
        handle = self._handle(_CONNECTION, environment)
        text = connection.encode()
        # Driver connect takes the handle, no window, what to connect to, and no place for what it completed that to.
        done = self._library.SQLDriverConnect(
            handle,
            None,
            text,
            ctypes.c_int16(_TERMINATED),
            None,
            ctypes.c_int16(0),
            None,
            ctypes.c_uint16(_NO_PROMPT),
        )
        if _failed(done):
            state = self._state_of(handle)
            self.close()
            raise RetryableError(
                f"cannot connect to Db2: SQLSTATE {state}", do="look at the database, user and password"
            )
        return handle

    def _handle(self, kind: int, parent: ctypes.c_int64) -> ctypes.c_int64:
        # Handles have 32 bits; so much room that one of 64 does no harm.
        handle = ctypes.c_int64(0)
        if _failed(self._library.SQLAllocHandle(ctypes.c_int16(kind), parent, ctypes.byref(handle))):
            raise OperatorError(
                "the Db2 client library cannot begin", do="look whether DB2INSTANCE, or db2profile, is set"
            )
        self._handles.append((kind, handle))
        return handle

    def _state_of(self, handle: ctypes.c_int64) -> str:
        """Return the state alone: the message beside it may repeat what was given."""
        state = ctypes.create_string_buffer(6)
        done = self._library.SQLGetDiagRec(
            ctypes.c_int16(_CONNECTION), handle, ctypes.c_int16(1), state, None, None, ctypes.c_int16(0), None
        )
        return "unknown" if _failed(done) else state.value.decode("ascii", "replace")

    def _call(self, action: int, start: Lri) -> tuple[bytes, int]:
        first, end = _Lri(1, *start), _Lri(*_END_OF_LOG)
        info, sqlca = ctypes.create_string_buffer(_INFO_BYTES), _Sqlca()
        told = _ReadLog(
            action,
            ctypes.pointer(first),
            ctypes.pointer(end),
            ctypes.addressof(self._buffer),
            len(self._buffer),
            _FILTER_ON,
            ctypes.addressof(info),
        )
        returned = self._library.db2ReadLog(ctypes.c_uint32(_VERSION), ctypes.byref(told), ctypes.byref(sqlca))
        sqlcode = sqlca.sqlcode or returned
        if sqlcode == _REUSED:
            raise OperatorError(
                "the log was begun anew: the database was restored or rolled forward (SQLCODE 2653)",
                do="begin with another folder, a catalogue with another `id`, and copies of the tables",
            )
        if sqlcode < 0:
            raise OperatorError(f"db2ReadLog failed with SQLCODE {sqlcode}", do=_DO.get(sqlcode, f"see SQL{-sqlcode}N"))
        return info.raw, sqlcode


def _load(library: str) -> Any:
    try:
        loaded = ctypes.CDLL(library)
        for name in (
            "db2ReadLog",
            "SQLAllocHandle",
            "SQLFreeHandle",
            "SQLDriverConnect",
            "SQLDisconnect",
            "SQLGetDiagRec",
        ):
            getattr(loaded, name)
    except OSError as exc:
        raise ConfigError(
            f"there is no Db2 client library {library!r} here",
            do="install IBM's client, and have LD_LIBRARY_PATH name its lib64, or give --library",
        ) from exc
    except AttributeError as exc:
        raise ConfigError(
            f"{library!r} lacks the read-log interface", do="install the whole client, not the driver package alone"
        ) from exc
    for name in _CALLS:
        getattr(loaded, name).restype = ctypes.c_int16
    return loaded


def _failed(returned: int) -> bool:
    return returned not in (0, 1)


def _lri_at(info: bytes, at: int) -> Lri:
    type_, part1, part2 = struct.unpack_from("=QQQ", info, at)
    if type_ != 1:
        raise OperatorError(f"db2ReadLog returned a position of type {type_}, and 1 is known")
    return Lri(part1, part2)
