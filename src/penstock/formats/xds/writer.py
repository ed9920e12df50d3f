"""XDS events as XML: one event, and the document that holds several."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from xml.sax.saxutils import unescape

from penstock.errors import MalformedInputError
from penstock.formats.xds.event import Operation, Value, XdsAttribute, XdsEvent, XdsEventKind

NOT_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff\ud800-\udfff]")
"""Characters that XML 1.0 cannot carry, not even escaped."""

_HEAD = (
    '<?xml version="1.0" encoding="UTF-8"?>\n<nds dtdversion="2.0" ndsversion="8.x">\n'
    "<source><product>Penstock</product></source>\n<input>\n"
)
_FOOT = "</input>\n</nds>\n"

_IN_TEXT = {ord("&"): "&amp;", ord("<"): "&lt;", ord(">"): "&gt;", ord("\r"): "&#13;"}
# A reader would turn a line break or tab in an attribute into a blank.
_IN_ATTRIBUTE = {**_IN_TEXT, ord('"'): "&quot;", ord("\n"): "&#10;", ord("\t"): "&#9;"}

_ASSOCIATION = "<association>"
_UNESCAPED = {"&#13;": "\r"}

_SPECIAL = re.compile('[&<>\r"\n\t]')


def write_event(event: XdsEvent) -> str:
    """Write an event's element, without line breaks between elements.

    Raises:
        MalformedInputError: Something in it holds a character that XML cannot carry.
    """
    id_ = "" if event.event_id is None else f' event-id="{_attribute(event.event_id)}"'
    body = "".join(map(_added if event.kind is XdsEventKind.ADD else _modified, event.attributes))
    written = (
        f'<{event.kind.value} class-name="{_name(event.class_name)}"{id_}>'
        f"<association>{_text(event.association)}</association>{body}</{event.kind.value}>"
    )
    found = NOT_XML.search(written)
    if found is not None:
        raise MalformedInputError(f"an event holds U+{ord(found[0]):04X}, a character that XML cannot carry")
    return written


def association_of(element: str) -> str:
    """Return the association of an event that `write_event` has written."""
    begin = element.index(_ASSOCIATION) + len(_ASSOCIATION)
    return unescape(element[begin : element.index("<", begin)], _UNESCAPED)


def write_document(events: Iterable[XdsEvent]) -> bytes:
    """Write a document of events, in UTF-8, an event to a line.

    Raises:
        MalformedInputError: As `write_event`.
    """
    return document_of(map(write_event, events))


def document_of(elements: Iterable[str]) -> bytes:
    """Write a document of events that `write_event` has written."""
    lines = "".join(f"{element}\n" for element in elements)
    return f"{_HEAD}{lines}{_FOOT}".encode()


def _added(attribute: XdsAttribute) -> str:
    values = "".join(_values(operation.values) for operation in attribute.operations)
    return f'<add-attr attr-name="{_name(attribute.name)}">{values}</add-attr>'


def _modified(attribute: XdsAttribute) -> str:
    steps = "".join(map(_step, attribute.operations))
    return f'<modify-attr attr-name="{_name(attribute.name)}">{steps}</modify-attr>'


def _step(operation: Operation) -> str:
    step, values = operation
    if not values:
        return f"<{step}/>"
    written = _values(values) if len(values) > 1 else f'<value type="{values[0].type}">{_text(values[0].text)}</value>'
    return f"<{step}>{written}</{step}>"


def _values(values: Iterable[Value]) -> str:
    return "".join(f'<value type="{value.type}">{_text(value.text)}</value>' for value in values)


def _text(text: str) -> str:
    return text.translate(_IN_TEXT) if _SPECIAL.search(text) else text


def _attribute(text: str) -> str:
    return text.translate(_IN_ATTRIBUTE) if _SPECIAL.search(text) else text


@lru_cache(4096)
def _name(text: str) -> str:
    """As `_attribute`, for the names of classes and columns, which are few."""
    return _attribute(text)
