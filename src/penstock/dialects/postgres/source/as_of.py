"""Rows of a captured table as they were at an earlier position, put right from the log's images.

A row that nothing has touched since the position is as it is now. For one that was touched, the first image in the
log says how it was: the before image of an update or delete; an insert says that there was no such row. The log
keeps what is not applied yet, so every position from the low watermark on can be asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from penstock.change import TableName
from penstock.dialects.postgres.casts import cast_sql, equal_sql, text_sql
from penstock.dialects.postgres.connection import literal, quote
from penstock.dialects.postgres.source.snapshots import Cut
from penstock.schema import Column, TableSchema
from penstock.snapshot.chunk import Chunk, KeyValues


def rows_now(table: TableSchema, columns: Sequence[Column], chunk: Chunk) -> str:
    """A query for the rows of a chunk as they are; columns of canonical text."""
    texts = ", ".join(f"{text_sql(c, f't.{quote(c.name)}')} AS {quote(c.name)}" for c in columns)
    return _rows(table, texts, chunk)


def plain_rows_now(table: TableSchema, columns: Sequence[str], chunk: Chunk) -> str:
    """The same, as the database's own values."""
    # The output function of xml leaves the declaration out.
    values = (f"t.{quote(n)}{'::pg_catalog.text' if table.by_name[n].base_type == 'xml' else ''}" for n in columns)
    return _rows(table, ", ".join(values), chunk)


def _rows(table: TableSchema, selected: str, chunk: Chunk) -> str:
    name = quote(table.name.schema, table.name.name)
    only = name if table.is_partitioned else f"ONLY {name}"
    return f"SELECT {selected} FROM {only} t WHERE {_in_range(table, chunk)}"


def rows_as_of(table: TableSchema, columns: Sequence[Column], chunk: Chunk, set_name: str, cut: Cut) -> str:
    """A query for the rows of a chunk as they were; the table was not truncated since."""
    if table.primary_key is None or table.primary_key.is_deferrable or not table.has_builtin_key:
        return _rows_by_difference(table, columns, chunk, set_name, cut)
    log = _changes(set_name)
    key = [table.by_name[name] for name in table.primary_key.columns]
    # Names of our own: a column of the table may be called `seq` or `before`.
    names = [f"k{n}" for n in range(len(key))]
    old = ", ".join(f"{_value(k, _member('before', k))} AS {name}" for k, name in zip(key, names, strict=True))
    new = ", ".join(f"{_value(k, _new_member(k))} AS {name}" for k, name in zip(key, names, strict=True))
    moves = " OR ".join(f"after::jsonb ? {literal(k.name)}" for k in key)
    listed = ", ".join(names)
    equals = table.primary_key.equals
    same = " AND ".join(
        equal_sql(f"touched.{name}", equals[k.name], f"t.{quote(k.name)}") for k, name in zip(key, names, strict=True)
    )
    since = f"{is_of(table.name, set_name)} AND {cut.since()}"
    images = ", ".join(f"{_member('before', c)} AS {quote(c.name)}" for c in columns)
    return (
        f"WITH touches AS (SELECT seq, line, before, {old} FROM {log} WHERE op IN ('U', 'D') AND {since}"
        f" UNION ALL SELECT seq, line, NULL, {new} FROM {log} WHERE (op = 'I' OR op = 'U' AND ({moves})) AND {since}),"
        # Before an insert, or a move to this key, no row had it.
        f" touched AS MATERIALIZED (SELECT DISTINCT ON ({listed}) {listed}, before FROM touches"
        # A change of key that only rewrites it, 1.0 to 1.00, is both at once.
        f" ORDER BY {listed}, seq, line, before IS NULL)"
        f" {rows_now(table, columns, chunk)} AND NOT EXISTS (SELECT FROM touched WHERE {same})"
        f" UNION ALL SELECT {images} FROM touched t WHERE before IS NOT NULL AND {_in_range(table, chunk, names)}"
    )


def _rows_by_difference(table: TableSchema, columns: Sequence[Column], chunk: Chunk, set_name: str, cut: Cut) -> str:
    """The same where the key does not tell which row was there first: two rows may share it for a while.

    Or where it cannot be read from its text without asking for a cast, which may be a user's; or there is none.
    """
    since = f"FROM {_changes(set_name)} WHERE {is_of(table.name, set_name)} AND {cut.since()}"
    key = [table.by_name[name] for name in table.primary_key.columns] if table.primary_key is not None else []

    def images(operations: str, member: Callable[[Column], str]) -> str:
        keys = [f"{_value(k, member(k))} AS {quote(k.name)}" for k in key] if chunk.is_bounded else []
        texts = ", ".join([*keys, *(f"{member(c)} AS {quote(f'text of {c.name}')}" for c in columns)])
        wanted = ", ".join(f"{quote(f'text of {column.name}')} AS {quote(column.name)}" for column in columns)
        return f"SELECT {wanted} FROM (SELECT {texts} {since} AND op IN ({operations})) t WHERE {in_range}"

    in_range = _in_range(table, chunk)
    left, came = images("'U', 'D'", lambda c: _member("before", c)), images("'U', 'I'", _new_member)
    return f"({rows_now(table, columns, chunk)} UNION ALL {left}) EXCEPT ALL {came}"


def row_counts_now(table: TableSchema, columns: Sequence[Column]) -> str:
    """A query for (digest, how many rows have it) as they are."""
    now = rows_now(table, columns, Chunk(table.name, 0))
    return (
        f"SELECT digest, count(*) AS n FROM (SELECT {digest(columns, 'r')} AS digest FROM ({now}) r) d GROUP BY digest"
    )


def row_counts_as_of(table: TableSchema, columns: Sequence[Column], set_name: str, cut: Cut) -> str:
    """A query for (digest, how many rows have it) as it was; for tables where only whole rows can be told apart."""
    log = _changes(set_name)
    since = f"{is_of(table.name, set_name)} AND {cut.since()}"
    old = ", ".join(_member("before", c) for c in columns)
    new = ", ".join(_new_member(c) for c in columns)
    now = rows_now(table, columns, Chunk(table.name, 0))
    return (
        f"SELECT digest, sum(n)::bigint AS n FROM (SELECT {digest(columns, 'r')} AS digest, 1 AS n FROM ({now}) r"
        f" UNION ALL SELECT {_digest(old)}, 1 FROM {log} WHERE op IN ('U', 'D') AND {since}"
        f" UNION ALL SELECT {_digest(new)}, -1 FROM {log} WHERE op IN ('U', 'I') AND {since}) c"
        " GROUP BY digest HAVING sum(n) <> 0"
    )


def digest(columns: Sequence[Column], row: str) -> str:
    """SQL for a digest of a row's canonical texts."""
    return _digest(", ".join(f"{row}.{quote(c.name)}" for c in columns))


def digest_of_row(columns: Sequence[Column]) -> str:
    """SQL for the same digest of row `t` of the table itself."""
    return _digest(", ".join(text_sql(c, f"t.{quote(c.name)}") for c in columns))


def _digest(texts: str) -> str:
    # Both sides digest UTF-8, whatever the encodings of the two databases are.
    return f"md5(convert_to(ROW({texts})::text, 'UTF8'))"


def _changes(set_name: str) -> str:
    """The log change by change, as an item of FROM; not a view, which a session that reads users' tables refuses."""
    log = f"{quote(set_name)}.log"
    return (
        "(SELECT xid, seq, 0::bigint AS line, relid, op, before, after"
        f" FROM {log} WHERE op IN ('I', 'U', 'D', 'T') UNION ALL"
        ' SELECT xid, seq, t.line, relid, upper(op::text)::"char",'
        " CASE op WHEN 'u' THEN split_part(t.images, E'\\t', 1) WHEN 'd' THEN t.images END,"
        " CASE op WHEN 'u' THEN split_part(t.images, E'\\t', 2) WHEN 'i' THEN t.images END"
        f" FROM {log}, string_to_table(before, E'\\n') WITH ORDINALITY t (images, line)"
        " WHERE op IN ('i', 'u', 'd')) changes"
    )


def is_of(table: TableName, set_name: str) -> str:
    """SQL for a log row that belongs to a table, by whatever id the table had."""
    return (
        f"relid IN (SELECT relid FROM {quote(set_name)}.captured WHERE (definition ->> 'schema', definition ->> 'name')"
        f" = ({literal(table.schema)}, {literal(table.name)}))"
    )


def _in_range(table: TableSchema, chunk: Chunk, names: Sequence[str] | None = None) -> str:
    """SQL for whether row `t` is of a chunk; `names` are those that its key columns have there."""
    if table.primary_key is None:
        return "true"
    fields = [f"t.{quote(name)}" for name in table.primary_key.columns] if names is None else [f"t.{n}" for n in names]
    key, values = (_key_texts, _text_values) if chunk.is_by_text else (_key, _key_values)
    tests = [
        f"({key(table, fields)}) {operator} ({values(table, end)})"
        for operator, end in ((">", chunk.after), ("<=", chunk.upto))
        if end is not None
    ]
    return " AND ".join(tests) or "true"


def _key(_: TableSchema, fields: Sequence[str]) -> str:
    return ", ".join(fields)


def _key_values(table: TableSchema, values: KeyValues) -> str:
    assert table.primary_key is not None
    columns = (table.by_name[name] for name in table.primary_key.columns)
    return ", ".join(_value(column, literal(value)) for column, value in zip(columns, values, strict=True))


def _key_texts(table: TableSchema, fields: Sequence[str]) -> str:
    assert table.primary_key is not None
    columns = (table.by_name[name] for name in table.primary_key.columns)
    return ", ".join(f'{text_sql(c, field)} COLLATE "C"' for c, field in zip(columns, fields, strict=True))


def _text_values(_: TableSchema, values: KeyValues) -> str:
    return ", ".join(literal(value) for value in values)


def _member(image: str, column: Column) -> str:
    return f"({image}::json ->> {literal(column.name)})"


def _new_member(column: Column) -> str:
    """A column after the change: an update's new image has only what changed."""
    name = literal(column.name)
    return f"CASE WHEN after::jsonb ? {name} THEN after::json ->> {name} ELSE before::json ->> {name} END"


def _value(column: Column, text: str) -> str:
    return cast_sql(column, f"({text})")
