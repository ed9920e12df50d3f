"""Compressed bodies of messages: what the properties `_compressionType` and `_uncompressedSize` say of them."""

from __future__ import annotations

import gzip
import io
import struct
import zipfile
import zlib
from collections.abc import Mapping
from enum import StrEnum

from penstock.errors import MalformedInputError
from penstock.formats.dbwatcher.message import Property
from penstock.text import printable

_PIECE = 1 << 20

_HEADER = struct.Struct("<4s2xHH4sI8xHH")
"""Of an entry: signature, flags, method, time, checksum, lengths of its name and of what else is said of it."""

_LOCAL_HEADER, _DESCRIPTOR, _LIST_OF_ENTRIES, _END = b"PK\3\4", b"PK\7\10", b"PK\1\2", b"PK\5\6"
_IS_ENCRYPTED, _HAS_DESCRIPTOR = 1, 8
_LEAST_END = 22


class Compression(StrEnum):
    """How a body is compressed; ZIP is an archive with one entry, or zlib's format."""

    GZIP = "GZIP"
    ZIP = "ZIP"


def compress(body: bytes, kind: Compression, *, least_bytes: int = 0) -> tuple[bytes, Mapping[str, str]]:
    """Compress a body, and return it with the properties that say so.

    It is returned as it is, with no property, where it is shorter than `least_bytes` or does not shrink.
    """
    if len(body) < least_bytes:
        return body, {}
    if kind is Compression.GZIP:
        # Without the time, so that a message written again is the same.
        packed = gzip.compress(body, mtime=0)
    else:
        archive = io.BytesIO()
        with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as written:
            written.writestr(zipfile.ZipInfo("message.xml"), body, zipfile.ZIP_DEFLATED)
        packed = archive.getvalue()
    if len(packed) >= len(body):
        return body, {}
    return packed, {Property.UNCOMPRESSED_SIZE.value: str(len(body)), Property.COMPRESSION_TYPE.value: kind.value}


def decompress(body: bytes, properties: Mapping[str, str], *, most_bytes: int, name: str = "") -> bytes:
    """Return a body as it was before it was compressed, which the properties tell.

    Args:
        most_bytes: Of the result; not more than that is ever in memory.
        name: What messages call the body.

    Raises:
        MalformedInputError: It is larger, it is damaged or cut short, or its size is not the one that the property
            says; or the compression is another one.
    """
    said = properties.get(Property.COMPRESSION_TYPE)
    if said is None:
        return body
    try:
        kind = Compression(said.strip().upper())
    except ValueError:
        raise MalformedInputError(
            f"the compression is {printable(said[:20])!r}, not {' or '.join(Compression)}", where=name
        ) from None
    size = properties.get(Property.UNCOMPRESSED_SIZE)
    if size is not None and size.strip().isdecimal() and int(size) > most_bytes:
        raise _too_large(most_bytes, name)
    try:
        unpacked = _unpacked(body, kind, most_bytes)
    except (OSError, EOFError, zlib.error, zipfile.BadZipFile, struct.error) as exc:
        raise MalformedInputError(f"the body is no whole {kind}", where=name) from exc
    if len(unpacked) > most_bytes:
        raise _too_large(most_bytes, name)
    if size is not None and size.strip() != str(len(unpacked)):
        raise MalformedInputError(f"the body has {len(unpacked):,} bytes, not as many as its property says", where=name)
    return unpacked


def _unpacked(body: bytes, kind: Compression, most_bytes: int) -> bytes:
    """Return at most one byte more than allowed."""
    if not body:
        raise EOFError
    if kind is Compression.GZIP:
        with gzip.GzipFile(fileobj=io.BytesIO(body)) as file:
            return _read(file, most_bytes + 1)
    if not body.startswith(_LOCAL_HEADER):
        unpacked, rest = _inflate(body, zlib.MAX_WBITS, most_bytes)
        if rest and len(unpacked) <= most_bytes:
            raise EOFError
        return unpacked
    return _only_entry(body, most_bytes)


def _only_entry(archive: bytes, most_bytes: int) -> bytes:
    """Return the entry of an archive that has one, read from its front as Java does.

    The list of entries at the end is not read: one that is made up may be long, and is in memory as a whole.
    """
    _, flags, method, _, crc, name_length, extra_length = _HEADER.unpack_from(archive)
    if method != zipfile.ZIP_DEFLATED or flags & _IS_ENCRYPTED:
        raise zipfile.BadZipFile
    unpacked, rest = _inflate(archive[_HEADER.size + name_length + extra_length :], -zlib.MAX_WBITS, most_bytes)
    if len(unpacked) > most_bytes:
        return unpacked
    if flags & _HAS_DESCRIPTOR:
        rest = rest.removeprefix(_DESCRIPTOR)
        (crc,) = struct.unpack_from("<I", rest)
    is_only = _LIST_OF_ENTRIES in rest[:32] and _LOCAL_HEADER not in rest[:32]
    is_whole = _END in rest and len(rest) - rest.rfind(_END) >= _LEAST_END
    if zlib.crc32(unpacked) != crc or not is_only or not is_whole:
        raise zipfile.BadZipFile
    return unpacked


def _inflate(packed: bytes, window: int, most_bytes: int) -> tuple[bytes, bytes]:
    """Return what was deflated, of which not more than one byte too many is unpacked, and what follows it."""
    inflating = zlib.decompressobj(window)
    unpacked = inflating.decompress(packed, most_bytes + 1)
    if len(unpacked) <= most_bytes and not inflating.eof:
        raise EOFError
    return unpacked, inflating.unused_data


def _read(file: gzip.GzipFile, most_bytes: int) -> bytes:
    pieces = []
    while most_bytes > 0 and (piece := file.read(min(_PIECE, most_bytes))):
        pieces.append(piece)
        most_bytes -= len(piece)
    return b"".join(pieces)


def _too_large(most_bytes: int, name: str) -> MalformedInputError:
    return MalformedInputError(
        f"the body has more than {most_bytes:,} bytes when it is no longer compressed",
        where=name,
        do="raise the limit, if messages of this size are meant",
    )
