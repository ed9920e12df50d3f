"""Compressed bodies of messages: what the properties `_compressionType` and `_uncompressedSize` say of them."""

from __future__ import annotations

import gzip
import io
import zipfile
import zlib
from collections.abc import Mapping
from enum import StrEnum
from typing import IO

from penstock.errors import MalformedInputError
from penstock.formats.dbwatcher.message import Property
from penstock.text import printable

_PIECE = 1 << 20


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
    except (OSError, EOFError, zlib.error, zipfile.BadZipFile, NotImplementedError, RuntimeError) as exc:
        raise MalformedInputError(f"the body is no whole {kind}", where=name) from exc
    if len(unpacked) > most_bytes:
        raise _too_large(most_bytes, name)
    if size is not None and size.strip() != str(len(unpacked)):
        raise MalformedInputError(f"the body has {len(unpacked):,} bytes, not as many as its property says", where=name)
    return unpacked


def _unpacked(body: bytes, kind: Compression, most_bytes: int) -> bytes:
    """Return at most one byte more than allowed."""
    if kind is Compression.GZIP:
        with gzip.GzipFile(fileobj=io.BytesIO(body)) as file:
            return _read(file, most_bytes + 1)
    if not body.startswith(b"PK"):
        packed = zlib.decompressobj()
        unpacked = packed.decompress(body, most_bytes + 1)
        if len(unpacked) <= most_bytes and (not packed.eof or packed.unused_data):
            raise EOFError
        return unpacked
    with zipfile.ZipFile(io.BytesIO(body)) as archive:
        entries = archive.infolist()
        if len(entries) != 1:
            raise zipfile.BadZipFile
        with archive.open(entries[0]) as entry:
            return _read(entry, most_bytes + 1)


def _read(file: IO[bytes] | gzip.GzipFile, most_bytes: int) -> bytes:
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
