"""What expat reports of a message, put together to its head and rows; `reader` has what callers need."""

from __future__ import annotations

import binascii
import codecs
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NoReturn
from xml.parsers import expat
from xml.sax.saxutils import escape, quoteattr

from penstock.errors import MalformedInputError
from penstock.formats.dbwatcher.message import Attribute, ColumnMetadata, Columns, Command, Head, MessageRow, Value
from penstock.formats.dbwatcher.protect import NOT_XML, text_of
from penstock.text import printable

_LONGEST_NAME = 60
_WHITE_SPACE = str.maketrans("", "", " \t\r\n")
_COMMANDS = {command.value: command for command in Command}
_NO_CHARSETS = frozenset({"punycode", "idna", "unicode_escape", "raw_unicode_escape", "undefined"})
"""Codecs of Python that turn bytes into text, and are no character sets; some take very long for a long value."""

_CUT_SHORT = expat.errors.codes[expat.errors.XML_ERROR_NO_ELEMENTS]
_BEHIND_THE_END = expat.errors.codes[expat.errors.XML_ERROR_JUNK_AFTER_DOC_ELEMENT]

_IN_DESC = frozenset({"command", "ident", "colname", "attr"})


@dataclass(frozen=True, slots=True)
class MessageLimits:
    """How large a message may be.

    Attributes:
        bytes: Of its XML, when it is no longer compressed.
        depth: How many elements may be inside each other.
    """

    bytes: int = 1 << 26
    depth: int = 32


DEFAULT_LIMITS = MessageLimits()


class RefusedError(Exception):
    """What is wrong, without the place."""


class MessageParser:
    """Reads one message, in pieces."""

    def __init__(self, name: str, limits: MessageLimits) -> None:
        """Begin with a message that is called `name` in errors."""
        self._name = name
        self._limits = limits
        self._parts: list[Head | MessageRow] = []
        # The open elements that mean something; below them, how many are skipped, or are text of an attribute.
        self._open: list[str] = []
        self._skipped = 0
        self._nested = 0
        self._has_head = False
        self._command: Command | None = None
        self._ident: str | None = None
        self._metadata: list[ColumnMetadata] = []
        self._columns: dict[str, Value] = {}
        self._attributes: dict[str, str] = {}
        # The names of the attributes that came, also of those without a value.
        self._named: set[str] = set()
        self._old: Columns | None = None
        # Of the element whose text is being read: what its tag says, and the text so far; None outside of one. Where it
        # has elements inside, the text is markup.
        self._said: Mapping[str, str] = {}
        self._text: list[str] | None = None
        self._is_markup = False
        parser = expat.ParserCreate()
        parser.buffer_text = True
        parser.buffer_size = 1 << 16
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.CharacterDataHandler = self._characters
        parser.StartDoctypeDeclHandler = _refuse_doctype
        self._parser = parser

    def feed(self, piece: bytes, *, is_last: bool = False) -> list[Head | MessageRow]:
        """Read on, and return what has become complete.

        Raises:
            MalformedInputError: The message breaks XML or its grammar; or it is the last piece, and the end is missing.
        """
        parser = self._parser
        try:
            parser.Parse(piece, is_last)
        except expat.ExpatError as exc:
            what = f"the message is not XML: {expat.ErrorString(exc.code)}"
            if exc.code == _CUT_SHORT:
                what += ": it is cut short, or empty"
            elif exc.code == _BEHIND_THE_END:
                what += ", which may be the next message: a file of several has to be split"
            raise self._malformed(what, exc.lineno, exc.offset) from exc
        except RefusedError as exc:
            # Without the cause, whose own cause may hold a value.
            raise self._malformed(str(exc), parser.CurrentLineNumber, parser.CurrentColumnNumber) from None
        except (LookupError, ValueError) as exc:
            # What expat asks Python's codecs for, and does not get: several bytes to a character, or no such name.
            raise MalformedInputError(
                "the message's XML declaration names an encoding that cannot be read",
                where=self._name,
                do="write it in UTF-8 or UTF-16, or in an encoding of one byte to a character",
            ) from exc
        parts, self._parts = self._parts, []
        return parts

    def fragment(self, content: str) -> Columns:
        """Read columns that have no row around them, and end."""
        self._open, self._has_head = ["sql"], True
        self.feed(f"<row>{content}</row>".encode("utf-8", "surrogatepass"), is_last=True)
        return self._columns

    def _start(self, tag: str, said: dict[str, str]) -> None:
        open_ = self._open
        if self._skipped or self._nested:
            self._start_below(tag, said)
        elif len(open_) == 2:
            in_row = open_[1] == "row"
            if (tag == "col" and in_row) or tag == "attr":
                if "name" not in said:
                    raise RefusedError(f"a <{tag}> has no name")
            elif tag == "col":
                raise RefusedError("a <col> stands outside of a row")
            else:
                tag = tag.lower() if tag not in ("COL", "ATTR") else ""
                if in_row or tag not in _IN_DESC:
                    self._skip()
                    return
            open_.append(tag)
            self._said = said
            self._text, self._is_markup = [], False
        elif len(open_) == 3:
            if open_[2] != "attr":
                raise RefusedError(f"an element stands inside a <{open_[2]}>")
            if not self._is_markup:
                self._text, self._is_markup = [escape("".join(self._text or ()))], True
            self._start_below(tag, said)
        else:
            self._start_part(tag)

    def _start_part(self, tag: str) -> None:
        lower = tag.lower()
        if not self._open:
            if lower != "sql":
                raise RefusedError("the root is not <sql>")
        elif lower == "desc":
            if self._has_head:
                raise RefusedError("there is a second <desc>")
        elif lower == "row":
            if not self._has_head:
                raise RefusedError("a <row> stands before <desc>")
            self._columns, self._attributes, self._named, self._old = {}, {}, set(), None
        else:
            self._skip()
            return
        self._open.append(lower)

    def _start_below(self, tag: str, said: Mapping[str, str]) -> None:
        """Take an element inside a skipped one; or inside an attribute, where its markup becomes text again."""
        if len(self._open) + self._skipped + self._nested >= self._limits.depth:
            raise RefusedError(f"more than {self._limits.depth} elements are inside each other")
        if self._skipped:
            self._skipped += 1
            return
        assert self._text is not None
        self._nested += 1
        told = "".join(f" {name}={quoteattr(value)}" for name, value in said.items())
        self._text.append(f"<{tag}{told}>")

    def _skip(self) -> None:
        self._skipped = 1

    def _end(self, tag: str) -> None:
        if self._skipped:
            self._skipped -= 1
        elif self._nested:
            self._nested -= 1
            assert self._text is not None
            self._text.append(f"</{tag}>")
        elif self._text is not None:
            text = "".join(self._text)
            self._text = None
            match self._open.pop():
                case "col":
                    self._columns[self._said["name"]] = _value(text, self._said)
                case "attr":
                    self._end_attribute(text)
                case "colname":
                    self._metadata.append(ColumnMetadata(text.strip(), dict(self._said)))
                case "command":
                    if self._command is not None:
                        raise RefusedError("there is a second <command>")
                    self._command = _command(text.strip())
                case "ident":
                    if self._ident is not None:
                        raise RefusedError("there is a second <ident>")
                    self._ident = text.strip()
        else:
            match self._open.pop():
                case "row":
                    self._parts.append(MessageRow(self._columns, self._attributes, self._old))
                case "desc":
                    self._end_head()
                case _:
                    if not self._has_head:
                        raise RefusedError("there is no <desc>")

    def _end_attribute(self, text: str) -> None:
        name = self._said["name"]
        if name in self._named:
            raise RefusedError(f"attribute {_shown(name)} is there twice")
        self._named.add(name)
        value = _value(text, self._said)
        if isinstance(value, bytes):
            try:
                value = text_of(value)
            except MalformedInputError as exc:
                raise RefusedError(exc.what) from None
        if name == Attribute.OLD_CONTENT and self._open[1] == "row":
            self._old = None if value is None else _columns(value, self._limits)
        elif value is None:
            self._attributes.pop(name, None)
        else:
            self._attributes[name] = value

    def _end_head(self) -> None:
        if self._command is None:
            raise RefusedError("<desc> has no <command>")
        self._has_head = True
        self._parts.append(Head(self._command, self._ident or "", self._attributes, tuple(self._metadata)))

    def _characters(self, text: str) -> None:
        if self._text is not None:
            self._text.append(escape(text) if self._is_markup else text)
        elif not self._skipped and not text.isspace():
            raise RefusedError("text stands outside of an element that has a value")

    def _malformed(self, what: str, line: int, column: int) -> MalformedInputError:
        place = f"line {line}, column {column + 1}"
        return MalformedInputError(what, where=f"{self._name}, {place}" if self._name else place)


def read_columns(content: str, *, name: str = "", limits: MessageLimits = DEFAULT_LIMITS) -> Columns:
    """Read an image as it stands in ITEMS or in `oldContent`: a run of `<col>` elements without one around them.

    Raises:
        MalformedInputError: It is no such run.
    """
    try:
        return _columns(content, limits)
    except RefusedError as exc:
        raise MalformedInputError(str(exc), where=name) from None


def _columns(content: str, limits: MessageLimits) -> Columns:
    if content.isprintable() or NOT_XML.search(content) is None:
        found = COLUMN.findall(content)
        if found and not found[-1][5]:
            return {
                name: None if null else packed_bytes(text) if packed else text or cdata
                for name, null, packed, text, cdata, _ in found
            }
    try:
        return MessageParser("", limits).fragment(content)
    except MalformedInputError as exc:
        # The place would be one inside the fragment.
        raise RefusedError(f"the columns of an image cannot be read: {exc.what}") from None


_PLAIN = r"[^<&\r\]]*(?:\](?!\]>)[^<&\r\]]*)*"
"""Text without markup, and without `]]>` and carriage returns, which XML does not carry as they are."""

COLUMN = re.compile(
    r'<col name="([^"<&\t\r\n]*)"(?:'
    r'( type="null")/>'
    rf'|( encoding="base64")?>({_PLAIN})</col>'
    r"|><!\[CDATA\[([^\r\]]*(?:\](?!\]>)[^\r\]]*)*)\]\]></col>"
    r")|([\s\S]+)"
)
"""A column in the form that `protect` writes; the last group takes everything from the first other thing on."""


def _value(text: str, said: Mapping[str, str]) -> Value:
    """Return the value of a column or an attribute."""
    if len(said) == 1:
        return text
    if said.get("type") == "null":
        if text.strip():
            raise RefusedError("a value of type null has text")
        return None
    encoding = said.get("encoding", "forcePlain").lower()
    if encoding == "forceplain":
        return text
    if encoding != "base64":
        raise RefusedError(f"the encoding {_shown(encoding)} is not base64 or forcePlain")
    value = packed_bytes(text)
    charset = said.get("charset")
    return value if charset is None else _decoded(value, charset)


def packed_bytes(text: str) -> bytes:
    """Return the bytes of Base64, with any white space inside; raises `RefusedError` where it is none."""
    try:
        # Without white space, as it is usually written, it is read at once.
        if len(text) % 4 == 0:
            return binascii.a2b_base64(text, strict_mode=True) if text else b""
    except ValueError:
        pass
    packed = text.translate(_WHITE_SPACE)
    try:
        # What has too many signs of padding, or too few, would be taken without the length.
        if len(packed) % 4 == 0:
            return binascii.a2b_base64(packed, strict_mode=True) if packed else b""
    except ValueError:
        pass
    raise RefusedError("a value is not padded Base64 of the standard alphabet")


def _decoded(value: bytes, charset: str) -> str:
    try:
        if codecs.lookup(charset).name in _NO_CHARSETS:
            raise LookupError
        return value.decode(charset)
    except LookupError:
        raise RefusedError(f"the charset {_shown(charset)} is not known") from None
    except ValueError:
        raise RefusedError(f"a value is not of the charset {_shown(charset)}") from None


def _command(text: str) -> Command:
    # Plain messages of DbWatcher have `statement` in small letters.
    found = _COMMANDS.get(text.upper())
    if found is None:
        raise RefusedError(f"the command {_shown(text)} is not known")
    return found


def _shown(name: str) -> str:
    return repr(printable(name[:_LONGEST_NAME]))


def _refuse_doctype(*_: object) -> NoReturn:
    raise RefusedError("the message declares a document type; no entity is resolved")
