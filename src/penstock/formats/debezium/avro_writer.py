"""Keys and values as Avro messages of a schema registry, to the byte as Confluent's converter writes them."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import fastavro

from penstock.errors import OperatorError
from penstock.formats.debezium.schema import ConnectSchema

_PRIMITIVES = {
    "boolean": "boolean",
    "int8": "int",
    "int16": "int",
    "int32": "int",
    "int64": "long",
    "float": "float",
    "double": "double",
    "string": "string",
    "bytes": "bytes",
}

_DECIMAL = "org.apache.kafka.connect.data.Decimal"

_WIDEST = 64
"""The precision of a decimal whose column has none."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ODD = re.compile(r"[^A-Za-z0-9_.]")


@dataclass(frozen=True)
class AvroPacking:
    """Confluent's Avro converter; implements `writer.Packing`.

    Attributes:
        register: Given a subject and the text of a schema, has it registered, and returns its id.
    """

    register: Callable[[str, str], int]

    @property
    def is_json(self) -> bool:
        """False."""
        return False

    @property
    def has_schemas(self) -> bool:
        """They are registered."""
        return True

    def packer(self, topic: str, part: str, schema: ConnectSchema) -> Callable[[Any], bytes]:
        """Return what writes the values of one schema, which is registered by the first of them."""
        node = avro_schema(schema)
        parsed = fastavro.parse_schema(_without_logical(node))
        # To be told which branch of a union is meant is quicker than to have every member of a record looked at.
        branches = {
            name: _ODD.sub("_", member.name)
            for name, member in schema.fields.items()
            if member.is_optional and member.type == "struct" and member.name is not None
        }
        head = b""

        def pack(value: Any) -> bytes:
            nonlocal head
            told = {name: (branch, value[name]) for name, branch in branches.items() if value[name] is not None}
            value = {**value, **told} if told else value
            if not head:
                id_ = self.register(f"{topic}-{part}", json.dumps(node, separators=(",", ":")))
                head = b"\0" + id_.to_bytes(4, "big")
            stream = io.BytesIO()
            stream.write(head)
            fastavro.schemaless_writer(stream, parsed, value)
            return stream.getvalue()

        return pack


def avro_schema(schema: ConnectSchema) -> Any:
    """Return the Avro schema of a Connect schema, members in the converter's order.

    Characters of schema names that Avro does not allow become `_`, as by `schema.name.adjustment.mode=avro`.

    Raises:
        OperatorError: A column has a name that Avro does not allow.
    """
    return _Writer().write(schema, "")


class _Writer:
    """Writes one schema: a record that comes again is named."""

    def __init__(self) -> None:
        self._known: set[str] = set()

    def write(self, schema: ConnectSchema, space: str) -> Any:
        node = self._plain(schema, space)
        if not schema.is_optional:
            return node
        return [node, "null"] if schema.has_default else ["null", node]

    def _plain(self, schema: ConnectSchema, space: str) -> Any:
        if schema.type == "struct":
            return self._record(schema, space)
        node: dict[str, Any]
        if schema.type == "array":
            assert schema.items is not None
            node = {"type": "array", "items": self.write(schema.items, space)}
        else:
            node = {"type": _PRIMITIVES[schema.type]}
        is_decimal = schema.name == _DECIMAL
        if is_decimal:
            node["scale"] = int(schema.parameters["scale"])
            node["precision"] = int(schema.parameters.get("connect.decimal.precision", _WIDEST))
        node |= _connect(schema, schema.name)
        if schema.type in ("int8", "int16"):
            node["connect.type"] = schema.type
        if is_decimal:
            node["logicalType"] = "decimal"
        return node["type"] if len(node) == 1 else node

    def _record(self, schema: ConnectSchema, space: str) -> Any:
        full = _ODD.sub("_", schema.name or "ConnectDefault")
        own, _, name = full.rpartition(".")
        if full in self._known:
            return name if own == space else full
        self._known.add(full)
        node: dict[str, Any] = {"type": "record", "name": name}
        if own != space:
            node["namespace"] = own
        node["fields"] = [self._field(field, member, own) for field, member in schema.fields.items()]
        return {**node, **_connect(schema, full)}

    def _field(self, name: str, schema: ConnectSchema, space: str) -> Mapping[str, Any]:
        if not _NAME.fullmatch(name):
            raise OperatorError(
                f"column {name!r} has a name that Avro does not allow: letters, digits and '_', no digit first",
                where=f"schema {space}",
                do="give it another name by a rule (rename), or publish as debezium-json",
            )
        field: dict[str, Any] = {"name": name, "type": self.write(schema, space)}
        if schema.has_default:
            field["default"] = schema.default
        elif schema.is_optional:
            field["default"] = None
        return field


def _connect(schema: ConnectSchema, name: str | None) -> Mapping[str, Any]:
    """What the converter keeps of a Connect schema beside what Avro says."""
    kept: dict[str, Any] = {}
    if schema.doc is not None:
        kept["connect.doc"] = schema.doc
    if schema.version is not None:
        kept["connect.version"] = schema.version
    if schema.parameters:
        kept["connect.parameters"] = dict(schema.parameters)
    if schema.has_default:
        kept["connect.default"] = schema.default
    if name is not None:
        kept["connect.name"] = name
    return kept


def _without_logical(node: Any) -> Any:
    """The same schema for bytes that are decimals already."""
    if isinstance(node, list):
        return [_without_logical(one) for one in node]
    if not isinstance(node, dict):
        return node
    kept = {name: value for name, value in node.items() if name != "logicalType"}
    for name in ("type", "items"):
        if name in kept:
            kept[name] = _without_logical(kept[name])
    if "fields" in kept:
        kept["fields"] = [_without_logical(one) for one in kept["fields"]]
    return kept
