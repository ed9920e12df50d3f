"""Messages written as XML, in the form that the original watcher gave them.

```
<?xml version='1.0' encoding='UTF-8' ?>
 <sql>
   <desc>
     <command>REPLICATION</command>
     <ident>1.2.3</ident>
   </desc>
   <row num='0'>  <col name="NAME">first</col><col name="AGE">44</col>
     <attr name='schema'>X</attr>
     <attr name='action'>INSERT</attr>
   </row>
 </sql>
```

Columns stand on the row's line, after two blanks, as they stand in ITEMS. An attribute's text is escaped; if it holds
`<`, `&`, `]]>`, `|` or what XML cannot carry, it is Base64. The old image of an update is its columns as escaped text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache

from penstock.errors import MalformedInputError
from penstock.formats.dbwatcher.message import (
    IN_PROPERTY,
    Attribute,
    ColumnMetadata,
    ControlMessage,
    Head,
    Message,
    MessageRow,
    Property,
)
from penstock.formats.dbwatcher.protect import NOT_XML, base64_of, columns2xml

FOOT = " </sql>"
"""What follows the last row."""

_DECLARATION = "<?xml version='1.0' encoding='UTF-8' ?>\n <sql>\n"

_ESCAPED = str.maketrans(
    {"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&apos;", "\r": "&#x0D;"},
)
# A reader would turn a line break or tab in an attribute of XML into a blank.
_ESCAPED_IN_XML_ATTRIBUTE = {**_ESCAPED, ord("\n"): "&#x0A;", ord("\t"): "&#x09;"}

_KEYS = frozenset({Attribute.REPL_KEY.value, Attribute.TRANSACTION.value})

_SHORT = 64
"""How many characters a value has at most whose attribute is kept once it was written."""

_SPECIAL = re.compile("[&<>\"'\r]")

_NEEDS_BASE64 = re.compile(rf"[<&|]|]]>|{NOT_XML.pattern}")


def write_message(message: Message) -> bytes:
    """Write the XML of a message, in UTF-8; its properties are not in it.

    Raises:
        MalformedInputError: A name or the ident has what XML cannot carry.
    """
    rows = "".join([write_row(number, row) for number, row in enumerate(message.rows)])
    return f"{write_head(message.head)}{rows}{FOOT}".encode()


def write_head(head: Head) -> str:
    """Write what precedes the first row: the XML declaration, the beginning of the root, `<desc>`.

    Raises:
        MalformedInputError: As `write_message`.
    """
    lines = [
        f"     <command>{head.command.value}</command>\n",
        f"     <ident>{_trimmed(head.ident, 'the ident')}</ident>\n",
        *map(_metadata, head.metadata),
        *(write_attribute(name, value) for name, value in head.attributes.items()),
    ]
    return f"{_DECLARATION}   <desc>\n{''.join(lines)}   </desc>\n"


def write_row(number: int, row: MessageRow) -> str:
    """Write a row; `number` counts the rows of the message from 0."""
    old = None if row.old is None else columns2xml(row.old)
    return write_row_of(number, columns2xml(row.columns), old, row.attributes)


def write_row_of(number: int, content: str, old_content: str | None, attributes: Mapping[str, str]) -> str:
    """Write a row whose images are already XML, as CONTENT and OLDCONTENT of ITEMS are.

    Args:
        content: `<col>` elements.
        old_content: The same of the old image; None without one.
        attributes: Of the row, without `oldContent`.
    """
    told = "".join(
        [
            # Keys differ from row to row; most other attributes are the same in all of them.
            f"     <attr name='{name}'>{value}</attr>\n"
            if name in _KEYS and value.isalnum()
            else write_attribute(name, value)
            for name, value in attributes.items()
        ]
    )
    old = "" if old_content is None else write_old_content(old_content)
    return f"   <row num='{number}'>  {content}\n{told}{old}   </row>\n"


def write_attribute(name: str, value: str) -> str:
    """Write an attribute of a row or of `<desc>`, with the line that it stands on."""
    return _short_attribute(name, value) if len(value) <= _SHORT else _attribute(name, value)


def write_old_content(old_content: str) -> str:
    """Write the attribute that holds an old image, which comes as XML."""
    text = escaped_content(old_content)
    return f"     <attr name='{Attribute.OLD_CONTENT.value}' encoding='forcePlain'>{text}</attr>\n"


def escaped_content(content: str) -> str:
    """Return an image that is XML as the text of an attribute."""
    # A chain of replace() takes a third of the time of translate() here, where nearly every character is a plain one.
    text = content.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace('"', "&quot;")
    return text.replace("'", "&apos;").replace("\r", "&#x0D;")


def unescaped_content(text: str) -> str:
    """Return an image as XML; the inverse of `escaped_content`."""
    text = text.replace("&lt;", "<").replace("&gt;", ">").replace("&quot;", '"').replace("&apos;", "'")
    return text.replace("&#x0D;", "\r").replace("&amp;", "&")


def write_control(message: ControlMessage) -> tuple[bytes, Mapping[str, str]]:
    """Return the body and the properties of a control message."""
    if message.command in IN_PROPERTY:
        return b"", {Property.COMMAND.value: message.command.value, **message.parameters}
    return message.command.value.encode(), dict(message.parameters)


@lru_cache(1024)
def _short_attribute(name: str, value: str) -> str:
    """As `_attribute`: the names of tables and actions come again and again."""
    return _attribute(name, value)


def _attribute(name: str, value: str) -> str:
    if _NEEDS_BASE64.search(value) is not None:
        return f"     <attr name='{_escaped_name(name)}' encoding='base64'>{base64_of(value)}</attr>\n"
    return f"     <attr name='{_escaped_name(name)}'>{_escaped(value)}</attr>\n"


def _metadata(column: ColumnMetadata) -> str:
    told = "".join(_xml_attributes(column.attributes.items()))
    return f"     <colname{told}>{_trimmed(column.name, 'the name of a column')}</colname>\n"


def _xml_attributes(pairs: Iterable[tuple[str, str]]) -> Iterable[str]:
    for name, value in pairs:
        if NOT_XML.search(value) is not None:
            raise MalformedInputError(f"the metadata {name!r} of a column has a character that XML cannot carry")
        yield f" {name}='{value.translate(_ESCAPED_IN_XML_ATTRIBUTE)}'"


def _trimmed(text: str, what: str) -> str:
    """Write a text that readers trim."""
    if text != text.strip() or NOT_XML.search(text) is not None:
        raise MalformedInputError(f"{what} begins or ends with a blank, or has a character that XML cannot carry")
    return _escaped(text)


def _escaped(text: str) -> str:
    return text.translate(_ESCAPED) if _SPECIAL.search(text) else text


def _escaped_name(name: str) -> str:
    return name if name.isidentifier() else _checked_name(name)


def _checked_name(name: str) -> str:
    if NOT_XML.search(name) is not None:
        raise MalformedInputError("the name of an attribute has a character that XML cannot carry")
    return name.translate(_ESCAPED_IN_XML_ATTRIBUTE)
