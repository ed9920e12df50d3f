"""Kafka Connect schemas: what stands in the `schema` part of a JSON message, as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType
from typing import Any

import orjson

from penstock.errors import MalformedInputError
from penstock.text import count

PRIMITIVES = frozenset({"boolean", "int8", "int16", "int32", "int64", "float", "double", "string", "bytes"})

_DEEPEST = 64
"""How many levels a schema may have; a row has two, a document column a few more."""

_KNOWN_SCHEMAS = 4096


class _NoDefault:
    def __repr__(self) -> str:
        return "NO_DEFAULT"

    def __reduce__(self) -> str:
        return "NO_DEFAULT"


NO_DEFAULT = _NoDefault()
"""Says that a schema has no default; a default of null is None."""


@dataclass(frozen=True, slots=True, eq=False)
class ConnectSchema:
    """One node of a Connect schema. Nodes are compared by identity: the same text is parsed to the same node.

    Attributes:
        type: One of `PRIMITIVES`, or `array`, `map`, `struct`.
        name: Of a struct or a logical type: `io.debezium.time.Date`.
        parameters: What a logical type needs beside its name: the scale of a decimal, the length of bits.
        default: As JSON writes a value of the type; `NO_DEFAULT` where there is none.
        fields: The members of a struct by their names, in order.
        items: What an array holds.
        keys, values: What a map holds.
    """

    type: str
    is_optional: bool = False
    name: str | None = None
    version: int | None = None
    doc: str | None = None
    parameters: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    default: Any = NO_DEFAULT
    fields: Mapping[str, ConnectSchema] = field(default_factory=lambda: MappingProxyType({}))
    items: ConnectSchema | None = None
    keys: ConnectSchema | None = None
    values: ConnectSchema | None = None

    @property
    def has_default(self) -> bool:
        """Whether a null may have been replaced by a default on the way."""
        return self.default is not NO_DEFAULT

    def to_json(self, field: str | None = None) -> dict[str, Any]:
        """Return the node as Kafka Connect's JSON converter writes it, members in its order.

        Args:
            field: The name under which a struct holds it.
        """
        node: dict[str, Any] = {"type": self.type}
        if self.items is not None:
            node["items"] = self.items.to_json()
        if self.keys is not None and self.values is not None:
            node |= {"keys": self.keys.to_json(), "values": self.values.to_json()}
        if self.type == "struct":
            node["fields"] = [member.to_json(name) for name, member in self.fields.items()]
        node["optional"] = self.is_optional
        plain = {"name": self.name, "version": self.version, "doc": self.doc}
        node |= {name: value for name, value in plain.items() if value is not None}
        if self.parameters:
            node["parameters"] = dict(self.parameters)
        if self.has_default:
            node["default"] = self.default
        return node if field is None else node | {"field": field}

    @classmethod
    def from_json(cls, node: object) -> ConnectSchema:
        """Read a node that `to_json`, or Kafka Connect, wrote.

        Raises:
            MalformedInputError: It is something else.
        """
        return _read(node, _DEEPEST)


@lru_cache(_KNOWN_SCHEMAS)
def parse_schema(text: bytes) -> ConnectSchema:
    """Read the text of a schema. The same bytes give the same node, without being looked at twice.

    Raises:
        MalformedInputError: The text is not JSON, or not a schema.
    """
    try:
        node = orjson.loads(text)
    except orjson.JSONDecodeError:
        raise MalformedInputError("the schema of a message is not JSON", where=count(len(text), "byte")) from None
    return ConnectSchema.from_json(node)


def _read(node: object, depth: int) -> ConnectSchema:
    if not isinstance(node, dict) or depth == 0:
        raise _not_a_schema("is not an object" if depth else "is nested too deep")
    kind = node.get("type")
    name, version, doc = node.get("name"), node.get("version"), node.get("doc")
    parameters = node.get("parameters") or {}
    fields: dict[str, ConnectSchema] = {}
    if kind == "struct":
        members = node.get("fields")
        if not isinstance(members, list):
            raise _not_a_schema("is of a struct without fields")
        for member in members:
            label = member.get("field") if isinstance(member, dict) else None
            if not isinstance(label, str) or label in fields:
                raise _not_a_schema("has a field without a name, or two of one name")
            fields[label] = _read(member, depth - 1)
    elif kind not in PRIMITIVES and kind not in ("array", "map"):
        raise _not_a_schema("has no type, or one that Kafka Connect does not have")
    is_sound = (
        isinstance(name, str | None)
        and isinstance(version, int | None)
        and isinstance(doc, str | None)
        and isinstance(parameters, dict)
        and all(isinstance(value, str) for value in parameters.values())
    )
    if not is_sound:
        raise _not_a_schema("has a name, version or parameter of the wrong type")
    return ConnectSchema(
        type=kind,
        is_optional=bool(node.get("optional", False)),
        name=name,
        version=version,
        doc=doc,
        parameters=MappingProxyType(parameters),
        default=node.get("default", NO_DEFAULT),
        fields=MappingProxyType(fields),
        items=_read(node.get("items"), depth - 1) if kind == "array" else None,
        keys=_read(node.get("keys"), depth - 1) if kind == "map" else None,
        values=_read(node.get("values"), depth - 1) if kind == "map" else None,
    )


def _not_a_schema(why: str) -> MalformedInputError:
    return MalformedInputError(f"the schema of a message {why}")
