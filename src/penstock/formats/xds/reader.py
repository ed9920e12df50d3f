"""XDS documents read: add, modify and delete become events again.

A document that declares a document type is refused, so there are no entities but the five of XML: nothing is fetched
and nothing expands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NoReturn
from xml.etree import ElementTree
from xml.etree.ElementTree import Element, ParseError, TreeBuilder, XMLParser

from penstock.errors import MalformedInputError
from penstock.formats.xds.event import AttributeStep, Operation, Value, XdsAttribute, XdsEvent, XdsEventKind
from penstock.text import printable

_KINDS = {kind.value: kind for kind in XdsEventKind}
_STEPS = {step.value: step for step in AttributeStep}

_PASSED = frozenset({"query", "query-ex", "query-schema", "status", "sync"})
"""Elements that ask or answer, and change no object."""

_LONGEST_TAG = 60


def read_document(document: bytes, *, name: str = "") -> list[XdsEvent]:
    """Read the events of a document, in order; see `read_events`. What is not a change is refused."""
    return [event for _, event in read_events(document, name=name)]


def read_events(
    document: bytes, *, name: str = "", passed: Callable[[str], None] | None = None
) -> list[tuple[int, XdsEvent]]:
    """Read the events of a document, in order, each with its number among all that the document holds.

    Args:
        name: What messages call the document.
        passed: Hears the name of each element that asks or answers, and changes nothing; None: it is refused.

    Raises:
        MalformedInputError: It is not XML, declares a document type or an encoding that cannot be read, or is not as
            the DTD of XDS has it; or it holds a change other than add, modify and delete.
    """
    parser = XMLParser(target=_Builder())  # noqa: S314 - no document type, so no entities
    try:
        root = ElementTree.fromstring(document, parser)  # noqa: S314 - see above
    except ParseError as exc:
        raise MalformedInputError("the document is not XML", where=_where(name, f"line {exc.position[0]}")) from exc
    except (LookupError, ValueError) as exc:
        # What the parser asks Python's codecs for, and does not get: several bytes to a character, or no such name.
        raise MalformedInputError(
            "the document's XML declaration names an encoding that cannot be read",
            where=name,
            do="write it in UTF-8 or UTF-16, or in an encoding of one byte to a character",
        ) from exc
    except _DoctypeError as exc:
        raise MalformedInputError(
            "the document declares a document type", where=name, do="remove <!DOCTYPE ...>; no entity is resolved"
        ) from exc
    if root.tag != "nds":
        raise MalformedInputError("the document's root is not <nds>", where=name)
    channels = [child for child in root if child.tag in ("input", "output")]
    if len(channels) != 1:
        raise MalformedInputError("<nds> does not hold one <input> or <output>", where=name)
    events = []
    for number, element in enumerate(channels[0], start=1):
        if passed is not None and element.tag in _PASSED:
            passed(element.tag)
        else:
            events.append((number, _event(element, number, name)))
    return events


class _DoctypeError(Exception):
    pass


class _Builder(TreeBuilder):
    def doctype(self, name: str, pubid: str | None, system: str | None) -> NoReturn:
        raise _DoctypeError


def _event(element: Element, number: int, name: str) -> XdsEvent:
    kind, where = _KINDS.get(element.tag), _where(name, f"event {number}")
    if kind is None:
        tag = printable(element.tag[:_LONGEST_TAG])
        raise MalformedInputError(f"event {number} is <{tag}>, not add, modify or delete", where=name)
    associations = element.findall("association")
    if len(associations) != 1:
        raise MalformedInputError(f"<{kind}> does not have one <association>", where=where)
    wanted = {XdsEventKind.ADD: "add-attr", XdsEventKind.MODIFY: "modify-attr", XdsEventKind.DELETE: None}[kind]
    attributes = []
    for child in element:
        if child.tag == wanted:
            read = _added if kind is XdsEventKind.ADD else _modified
            attributes.append(XdsAttribute(_required(child, "attr-name", where), tuple(read(child, where))))
        elif child.tag != "association":
            raise MalformedInputError(f"<{kind}> holds an element that does not belong there", where=where)
    return XdsEvent(
        kind,
        _required(element, "class-name", where),
        (associations[0].text or "").strip(),
        tuple(attributes),
        element.get("event-id"),
    )


def _added(attribute: Element, where: str) -> Iterator[Operation]:
    values = _values(attribute, where)
    if not values:
        raise MalformedInputError("<add-attr> has no <value>", where=where)
    yield Operation(AttributeStep.ADD_VALUE, values)


def _modified(attribute: Element, where: str) -> Iterator[Operation]:
    if len(attribute) == 0:
        raise MalformedInputError("<modify-attr> says nothing", where=where)
    for child in attribute:
        step = _STEPS.get(child.tag)
        if step is None:
            raise MalformedInputError("<modify-attr> holds an element that does not belong there", where=where)
        values = _values(child, where)
        if (step is AttributeStep.REMOVE_ALL_VALUES) == bool(values):
            raise MalformedInputError(f"<{step}> has {'values' if values else 'no <value>'}", where=where)
        yield Operation(step, values)


def _values(element: Element, where: str) -> tuple[Value, ...]:
    found: Sequence[Element] = list(element)
    if any(child.tag != "value" for child in found):
        raise MalformedInputError("an element stands where only <value> may", where=where)
    if any(len(child) for child in found):
        raise MalformedInputError("a <value> has elements inside, which are not read", where=where)
    # A type that is not said is a string, as the DTD has it.
    return tuple(Value(child.get("type", "string"), child.text or "") for child in found)


def _required(element: Element, name: str, where: str) -> str:
    value = element.get(name)
    if not value:
        raise MalformedInputError(f"<{element.tag}> has no {name}", where=where)
    return value


def _where(*parts: str) -> str:
    return ", ".join(filter(None, parts))
