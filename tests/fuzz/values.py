"""Random values of PostgreSQL's types, as input text, and pairs of values that only look equal."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

Chance = random.Random
Text = str | None

_LETTERS = [
    "a",
    "B",
    "é",
    "e\u0301",
    "ß",
    "İ",
    "😀",
    "\u200d",
    "\ufeff",
    "\u2028",
    "\u0085",
    "\uffff",
    "\U0010ffff",
    "ﬁ",
    "٣",
]
_ODD = [
    " ",
    "  ",
    "\t",
    "\n",
    "\r\n",
    "\\",
    '"',
    "'",
    ",",
    "{",
    "}",
    "(",
    ")",
    "\x01",
    "\x7f",
    "%s",
    "NULL",
    "\\N",
    "\\.",
    "T",
    "t",
]


def text(chance: Chance) -> str:
    """Any text; now and then one that is stored out of line."""
    if chance.random() < 0.04:
        return "".join(chance.choices(_LETTERS + _ODD, k=3000))
    return "".join(chance.choices(_LETTERS + _ODD, k=chance.randint(0, 6))) + chance.choice(["", "", " ", "  "])


def number(chance: Chance) -> str:
    """A numeric with a scale that means something."""
    if chance.random() < 0.12:
        return chance.choice(["NaN", "Infinity", "-Infinity"])
    digits = chance.choice([1, 3, 9, 20, 60])
    scale = chance.choice([0, 0, 1, 2, 5, 30])
    whole = str(chance.randrange(10**digits))
    sign = chance.choice(["", "-"])
    return f"{sign}{whole}" + (f".{chance.randrange(10**scale):0{scale}d}" if scale else "")


def real(chance: Chance) -> str:
    """A float whose last bit matters."""
    return chance.choice(
        [
            "NaN",
            "Infinity",
            "-Infinity",
            "-0",
            "0",
            "0.1",
            "0.3",
            "1e-30",
            "3.4e38",
            repr(chance.random()),
            repr(chance.uniform(-1e9, 1e9)),
        ]
    )


def finite(chance: Chance) -> str:
    """A float for a coordinate."""
    return chance.choice(
        [
            "-0",
            "0",
            "0.1",
            repr(0.1 + 0.2),
            "1e-30",
            repr(chance.random()),
            repr(chance.uniform(-1e6, 1e6)),
            str(chance.randint(-9, 9)),
        ]
    )


def date(chance: Chance) -> str:
    """A date, also of before our era."""
    if chance.random() < 0.15:
        return chance.choice(["infinity", "-infinity", "4713-01-01 BC", "5874897-12-31", "0001-12-31 BC"])
    year = chance.choice([chance.randint(1, 9999), chance.randint(1900, 2100), chance.randint(10000, 200000)])
    era = " BC" if year < 4000 and chance.random() < 0.3 else ""
    return f"{year:04d}-{chance.randint(1, 12):02d}-{chance.randint(1, 28):02d}{era}"


def clock(chance: Chance) -> str:
    """A time of day."""
    if chance.random() < 0.1:
        return "24:00:00"
    fraction = chance.choice(["", ".5", ".000001", ".999999"])
    return f"{chance.randint(0, 23):02d}:{chance.randint(0, 59):02d}:{chance.randint(0, 59):02d}{fraction}"


def zone(chance: Chance) -> str:
    """An offset."""
    return f"{chance.choice('+-')}{chance.randint(0, 15):02d}{chance.choice(['', ':30', ':59:59'])}"


def timestamp(chance: Chance) -> str:
    """A moment, without a zone."""
    if chance.random() < 0.12:
        return chance.choice(["infinity", "-infinity", "4713-01-02 00:00:00 BC", "294276-12-31 10:59:59.999999"])
    day, _, era = date(chance).partition(" ")
    if "infinity" in day or int(day.split("-")[0] or 1) > 290000:
        return "2024-02-29 23:59:59.999999"
    if era and int(day.split("-")[0]) > 4700:
        era = ""
    return f"{day} {clock(chance)}{' ' + era if era else ''}"


def timestamptz(chance: Chance) -> str:
    """A moment with an offset."""
    plain = timestamp(chance)
    if "infinity" in plain:
        return plain
    stem, is_before, _ = plain.partition(" BC")
    return f"{stem}{zone(chance) if not is_before else '+00'}{is_before}"


def interval(chance: Chance) -> str:
    """Months, days and time, with signs of their own."""
    if chance.random() < 0.08:
        return chance.choice(["infinity", "-infinity", "178000000 years", "0"])
    parts = [f"{chance.randint(-500, 500)} {unit}" for unit in ("mons", "days") if chance.random() < 0.6]
    return " ".join([*parts, f"{chance.choice(['', '-'])}{clock(chance)}"])


def json(chance: Chance, depth: int = 0) -> str:
    """JSON with what only its text has: spacing, doubled keys, the form of numbers."""
    kind = chance.random()
    if kind < 0.3 or depth > 2:
        return chance.choice(
            ["null", "true", "1.0", "1.00", "1e2", "-0", "-0.0", '""', '"\\u00e9"', '"é"', "[]", "{}", "  [ 1 ,2]  "]
        )
    if kind < 0.6:
        one, two, three = (json(chance, depth + 1) for _ in range(3))
        return f'{{"a": {one},  "a":{two}, "b" : [{three}]}}'
    return f"[{json(chance, depth + 1)},\n{json(chance, depth + 1)}]"


def xml(chance: Chance) -> str:
    """XML, with and without declaration, as document and as content."""
    body = chance.choice(
        ['<a b="c">é</a>', "<a  b='c' />", "<a><!-- x --> t </a>", "<x:a xmlns:x='u'/>", "<a>]]&gt;</a>", "<a>\n</a>"]
    )
    kind = chance.random()
    if kind < 0.3:
        return f'<?xml version="1.0" encoding="UTF-8"?>{body}'
    if kind < 0.5:
        return f"<?xml version='1.0' standalone='yes'?>{body}"
    return body


def _bits(chance: Chance) -> str:
    return "".join(chance.choices("01", k=chance.choice([1, 4, 9, 70])))


def _point(chance: Chance) -> str:
    return f"({finite(chance)},{finite(chance)})"


def _points(chance: Chance) -> str:
    return ",".join(_point(chance) for _ in range(chance.randint(1, 4)))


def _word(chance: Chance) -> str:
    return "'" + "".join(chance.choices(["a", "B", "é", "''", " ", "\\\\", ":"], k=chance.randint(1, 4))) + "'"


def _inet(chance: Chance) -> str:
    if chance.random() < 0.3:
        return chance.choice(["::1", "::ffff:1.2.3.4", "2001:db8::/32", "::/0"])
    return ".".join(str(chance.randint(0, 255)) for _ in range(4)) + chance.choice(["", "/8", "/32", "/0"])


def _cidr(chance: Chance) -> str:
    return chance.choice(
        ["10.0.0.0/8", "0.0.0.0/0", "192.168.1.0/24", "2001:db8::/32", f"{chance.randint(0, 255)}.0.0.0/8"]
    )


def _hexes(chance: Chance, count: int, joint: str) -> str:
    return joint.join(f"{chance.randint(0, 255):02x}" for _ in range(count))


def _snapshot(chance: Chance) -> str:
    low = chance.randint(1, 1000)
    return f"{low}:{low + 20}:{','.join(str(low + n) for n in sorted(chance.sample(range(20), chance.randint(0, 4))))}"


def _one(*texts: str) -> Callable[[Chance], str]:
    return lambda chance: chance.choice(texts)


def _integer(bits: int, *, is_signed: bool = True) -> Callable[[Chance], str]:
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if is_signed else (0, 2**bits - 1)
    return lambda chance: str(chance.choice([low, high, 0, 1, chance.randint(low, high)]))


BASE: dict[str, Callable[[Chance], str]] = {
    "bool": _one("t", "f"),
    "bytea": lambda chance: "\\x" + _hexes(chance, chance.choice([0, 1, 5, 300]), ""),
    "char": _one("x", "", "\\377", " ", "é"[:0]),
    "name": lambda chance: text(chance).replace("\x00", "")[:12],
    "int8": _integer(64),
    "int2": _integer(16),
    "int4": _integer(32),
    "text": text,
    "varchar": text,
    "bpchar": text,
    "oid": _integer(32, is_signed=False),
    "xid": _integer(32, is_signed=False),
    "cid": _integer(32, is_signed=False),
    "xid8": _integer(64, is_signed=False),
    "tid": lambda chance: f"({chance.randint(0, 99)},{chance.randint(0, 99)})",
    "json": json,
    "jsonb": json,
    "xml": xml,
    "jsonpath": _one("$", "$.a[*]", 'strict $."a b" ? (@ > 1)', "$.**{2}", "lax $.a.size()"),
    "point": _point,
    "lseg": lambda chance: f"[{_point(chance)},{_point(chance)}]",
    "path": lambda chance: f"[{_points(chance)}]" if chance.random() < 0.5 else f"({_points(chance)})",
    "box": lambda chance: f"{_point(chance)},{_point(chance)}",
    "polygon": lambda chance: f"({_points(chance)})",
    "line": lambda chance: f"{{{chance.randint(1, 9)},{finite(chance)},{finite(chance)}}}",
    "circle": lambda chance: f"<{_point(chance)},{abs(float(finite(chance)))!r}>",
    "float4": real,
    "float8": real,
    "money": lambda chance: f"{chance.randint(-(10**9), 10**9)}.{chance.randint(0, 99):02d}",
    "macaddr": lambda chance: _hexes(chance, 6, ":"),
    "macaddr8": lambda chance: _hexes(chance, 8, ":"),
    "inet": _inet,
    "cidr": _cidr,
    "date": date,
    "time": clock,
    "timetz": lambda chance: clock(chance) + zone(chance),
    "timestamp": timestamp,
    "timestamptz": timestamptz,
    "interval": interval,
    "bit": _bits,
    "varbit": _bits,
    "numeric": number,
    "refcursor": text,
    "uuid": lambda chance: f"{chance.getrandbits(128):032x}",
    "pg_lsn": lambda chance: f"{chance.getrandbits(32):X}/{chance.getrandbits(32):X}",
    "tsvector": lambda chance: " ".join(
        f"{_word(chance)}{chance.choice(['', ':1', ':3A,7', ':16383C'])}" for _ in range(chance.randint(0, 3))
    ),
    "tsquery": lambda chance: (
        chance.choice(["", "!", "!!"])
        + chance.choice([" & ", " | ", " <-> ", " <3> "]).join(
            f"{_word(chance)}{chance.choice(['', ':A', ':B', ':*', ':*AB'])}" for _ in range(chance.randint(1, 3))
        )
    ),
    "txid_snapshot": _snapshot,
    "pg_snapshot": _snapshot,
    "int2vector": lambda chance: " ".join(str(chance.randint(-99, 99)) for _ in range(chance.randint(0, 4))),
    "oidvector": lambda chance: " ".join(str(chance.randint(0, 99)) for _ in range(chance.randint(0, 4))),
    "aclitem": _one("=r/postgres", "postgres=arwd*/postgres", "postgres=/postgres"),
    "regproc": _one("now", "pg_catalog.pi", "-", "99999"),
    "regprocedure": _one("abs(integer)", "pg_catalog.abs(numeric)", "-"),
    "regoper": _one("||/", "pg_catalog.!!", "0"),
    "regoperator": _one("+(integer,integer)", "pg_catalog.-(NONE,bigint)", "0"),
    "regclass": _one("pg_class", 'public."Odd name"', "-", "99999"),
    "regcollation": _one('"C"', 'pg_catalog."POSIX"', "-"),
    "regtype": _one("integer", "numeric[]", "timestamp with time zone", "pg_class", "-"),
    "regrole": _one("postgres", "pg_monitor", "-"),
    "regnamespace": _one("pg_catalog", "public", "-"),
    "regdatabase": _one("postgres", "template1", "-"),
    "regconfig": _one("simple", "pg_catalog.english"),
    "regdictionary": _one("simple", "english_stem"),
    "citext": text,
    "hstore": lambda chance: ", ".join(
        f'"{chance.choice("abc")}"=>{chance.choice(["NULL", chr(34) + "é x" + chr(34)])}'
        for _ in range(chance.randint(0, 3))
    ),
    "cube": lambda chance: f"({finite(chance)},{finite(chance)}),({finite(chance)},{finite(chance)})",
    "ltree": _one("a.b.c", "", "Top.Sub_1"),
    "lquery": _one("a.*.b", "*.!x"),
    "ltxtquery": _one("a & b*", "!A@"),
    "vector": lambda chance: "[" + ",".join(str(chance.uniform(-9, 9)) for _ in range(3)) + "]",
    "halfvec": lambda chance: "[" + ",".join(str(chance.uniform(-9, 9)) for _ in range(3)) + "]",
    "sparsevec": lambda chance: f"{{1:{chance.randint(1, 9)},3:{chance.uniform(1, 9)}}}/5",
}
"""A value of each type, by the type's name."""

TWINS: dict[str, list[tuple[str, str]]] = {
    "numeric": [("1.0", "1.00"), ("0", "0.000"), ("-5", "-5.0")],
    "float4": [("0", "-0"), ("0.1", "0.10000002")],
    "float8": [("0", "-0"), ("0.3", "0.30000000000000004")],
    "bpchar": [("a", "a  "), ("", " ")],
    "text": [("a", "A"), ("é", "e\u0301"), ("a", "a ")],
    "varchar": [("a", "a "), ("a", "A")],
    "name": [("a", "A")],
    "citext": [("A", "a"), ("Straße", "STRASSE")],
    "interval": [("24:00:00", "1 day"), ("30 days", "1 mon"), ("1 year", "360 days")],
    "jsonb": [("1.0", "1.00"), ('{"a": 1}', '{"a": 1.0}'), ("[0]", "[-0.0]")],
    "json": [('{"a":1}', '{"a": 1}'), ('{"a":1,"a":2}', '{"a":2,"a":1}'), ('{"a":2}', '{"a":1,"a":2}')],
    "xml": [("<a/>", "<a></a>"), ('<?xml version="1.0"?><a/>', "<a/>"), ("<a b='1'/>", '<a b="1"/>')],
    "tsquery": [("foo:A", "foo:B"), ("foo:A & b", "foo & b"), ("!a", "!a:*")],
    "tsvector": [("a:1A", "a:1B"), ("a:1", "a:2"), ("a", "a:1")],
    "point": [("(0,0)", "(-0,0)"), ("(0.3,1)", "(0.30000000000000004,1)"), ("(0,0)", "(0.0000001,0)")],
    "lseg": [("[(0,0),(1,1)]", "[(0,0),(1,1.0000001)]"), ("[(0,0),(1,1)]", "[(-0,0),(1,1)]")],
    "box": [
        ("(2,2),(0,0)", "(4,1),(0,0)"),
        ("(1,1),(0,0)", "(3,3),(2,2)"),
        ("(0.3,1),(0,0)", "(0.30000000000000004,1),(0,0)"),
    ],
    "path": [("[(0,0),(1,1)]", "[(5,5),(6,7)]"), ("[(0,0)]", "[(0.3,0.1)]"), ("[(0,0),(1,1)]", "((0,0),(1,1))")],
    "polygon": [("((0,0),(1,1),(1,0))", "((1,1),(1,0),(0,0))"), ("((0,0))", "((-0,0))")],
    "circle": [("<(0,0),2>", "<(5,5),2>"), ("<(0,0),0.3>", "<(0,0),0.30000000000000004>")],
    "line": [("{1,2,3}", "{2,4,6}"), ("{1,2,0}", "{1,2,-0}")],
    "timetz": [("12:00+00", "13:00+01"), ("00:00+00", "24:00+00")],
    "cube": [("(0.3)", "(0.30000000000000004)"), ("(0)", "(-0)")],
    "char": [("x", "X"), ("", " ")],
    "money": [("12.5", "12.51")],
    "bool": [("t", "f")],
    "inet": [("10.0.0.1/8", "10.0.0.1/9")],
    "tid": [("(1,2)", "(1,3)")],
    "jsonpath": [("$.a", '$."b"'), ("lax $.a", "strict $.a")],
    "hstore": [("a=>1", "a=>NULL")],
    "vector": [("[0,1,2]", "[-0,1,2]")],
    "halfvec": [("[0,1,2]", "[-0,1,2]")],
}
"""Pairs of values of which each must not be taken for the other; most of them are equal by some operator."""


@dataclass(frozen=True)
class Kind:
    """A type of the server's, and what it is made of."""

    name: str
    sql: str
    type: str
    element: Kind | None = None
    attributes: Sequence[Kind] = ()
    labels: Sequence[str] = ()
    is_built_in: bool = True
    delimiter: str = ","
    has_bits: bool = True

    @property
    def is_portable(self) -> bool:
        """Whether its binary form means the same in another database."""
        parts = [*self.attributes, *([self.element] if self.element else [])]
        by_oid = self.name.startswith("reg") or self.type == "c" or (self.type == "a" and not parts[0].is_built_in)
        return self.has_bits and not by_oid and all(part.is_portable for part in parts)

    def value(self, chance: Chance, depth: int = 0) -> Text:
        """A value as input text, None for a null inside something."""
        if depth and chance.random() < 0.12:
            return None
        match self.type:
            case "e":
                return chance.choice(list(self.labels))
            case "d":
                assert self.element is not None
                return self.element.value(chance) if self.name != "yes_or_no" else chance.choice(["YES", "NO"])
            case "a":
                return self._array([self._part(chance) for _ in range(chance.choice([0, 1, 2, 4]))], chance)
            case "r":
                return self._range(chance)
            case "m":
                assert self.element is not None
                return "{" + ",".join(self.element.value(chance) or "empty" for _ in range(chance.randint(0, 3))) + "}"
            case "c":
                return _record([part.value(chance, depth + 1) for part in self.attributes])
        return BASE[self.name](chance)

    def twins(self) -> list[tuple[str, str]]:
        """Pairs that must not be taken for each other."""
        if self.type in ("b", "d") and self.element is None:
            return TWINS.get(self.name, [])
        if self.type == "d":
            assert self.element is not None
            return self.element.twins()
        if self.type == "a":
            assert self.element is not None
            made = [(self._array([x], None), self._array([y], None)) for x, y in self.element.twins()]
            some = self.element.value(random.Random(1)) or ""
            # Lower bounds, and a null beside a text that reads NULL.
            return [*made, (self._array([some], None), f"[5:5]={self._array([some], None)}"), ("{NULL}", "{}")]
        if self.type == "r":
            assert self.element is not None
            pairs = [(f"[{_quoted(x)},)", f"[{_quoted(y)},)") for x, y in self.element.twins()]
            return [*pairs, ("empty", "(,)")]
        if self.type == "m":
            assert self.element is not None
            return [(f"{{{x}}}", f"{{{y}}}") for x, y in self.element.twins()]
        if self.type == "c":
            pairs = []
            for place, part in enumerate(self.attributes):
                for x, y in part.twins()[:1]:
                    row: list[Text] = [None] * len(self.attributes)
                    pairs.append(
                        (_record([*row[:place], x, *row[place + 1 :]]), _record([*row[:place], y, *row[place + 1 :]]))
                    )
            return pairs
        if self.type == "e":
            return [(self.labels[0], self.labels[1])]
        return []

    def _part(self, chance: Chance) -> Text:
        assert self.element is not None
        return self.element.value(chance, depth=1)

    def _array(self, parts: Sequence[Text], chance: Chance | None) -> str:
        inside = "{" + self.delimiter.join("NULL" if part is None else _quoted(part) for part in parts) + "}"
        if chance is not None and parts and chance.random() < 0.2:
            low = chance.randint(-3, 7)
            return f"[{low}:{low + len(parts) - 1}]={inside}"
        return f"{{{inside},{inside}}}" if chance is not None and parts and chance.random() < 0.1 else inside

    def _range(self, chance: Chance) -> str:
        if chance.random() < 0.15:
            return "empty"
        assert self.element is not None
        low, high = self.element.value(chance), self.element.value(chance)
        form = chance.choice(["both", "both", "both", "low", "high"])
        left = _quoted(low or "") if form != "high" else ""
        right = _quoted(high or "") if form != "low" else ""
        return f"{chance.choice('[(')}{left},{right}{chance.choice('])')}"


def _quoted(part: str) -> str:
    escaped = part.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _record(parts: Sequence[Text]) -> str:
    return "(" + ",".join("" if part is None else _quoted(part) for part in parts) + ")"
