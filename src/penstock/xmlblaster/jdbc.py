"""Urls of the PostgreSQL JDBC driver, as libpq writes them.

The driver's forms are `jdbc:postgresql:database`, `jdbc:postgresql://host:port/database?option=value&...`, with several
hosts between commas; see its documentation, "Connecting to the Database". Its defaults are localhost, port 5432, and
the user's name for the database.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, quote, unquote

from penstock.errors import ConfigError, OperatorError
from penstock.xmlblaster.old_file import is_secret

_POSTGRESQL = "jdbc:postgresql:"

_PLACE = re.compile(r"//(?P<hosts>[^/?]*)(?:/(?P<database>[^?]*))?")

_HOST = re.compile(r"([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:\d{1,5})?")

_INSTEAD = {
    "oracle": "capture with Debezium's connector for Oracle, and read its events: capture.source: debezium",
    "db2": "capture with Debezium's connector for Db2, or read Db2's log: capture.source: debezium or db2_log",
    "mysql": "capture with Debezium's connector for MySQL, and read its events: capture.source: debezium",
    "mariadb": "capture with Debezium's connector for MariaDB, and read its events: capture.source: debezium",
    "sqlserver": "capture with Debezium's connector for SQL Server, and read its events: capture.source: debezium",
    "microsoft": "capture with Debezium's connector for SQL Server, and read its events: capture.source: debezium",
    "hsqldb": "move the tables to PostgreSQL",
    "h2": "move the tables to PostgreSQL",
}
"""What replaces a capture by triggers in another database."""

_SAME = frozenset({"sslmode", "sslrootcert", "sslcert", "sslkey"})
"""Options with the same name and meaning in both."""

_RENAMED = {"ApplicationName": "application_name", "connectTimeout": "connect_timeout"}

_WRITABLE = frozenset({"primary", "master"})


@dataclass
class Database:
    """Where a database is.

    Attributes:
        url: As libpq reads it, with a reference in place of the password.
        name: The database's name.
        schema: The schema in which unqualified tables lie.
        user: Empty if the url has none.
        variables: Variables of the environment that the url refers to.
        remarks: By option of the old url: why it is not in the new one, or what else there is to do.
    """

    url: str
    name: str
    schema: str
    user: str
    variables: list[str] = field(default_factory=list)
    remarks: dict[str, str] = field(default_factory=dict)


def refuse_other_databases(url: str, *, is_target: bool, where: str) -> None:
    """Make sure that a url is of PostgreSQL.

    Raises:
        OperatorError: It is of another database; names that, and what to do.
        ConfigError: It is no JDBC url.
    """
    if url.startswith(_POSTGRESQL):
        return
    found = re.match(r"jdbc:([a-z0-9]+):", url)
    if found is None:
        raise ConfigError("db.url is not a JDBC url", where=where, do="write jdbc:postgresql://host:port/database")
    # The name of a vendor is no secret, and any other word might be.
    named = found.group(1) if found.group(1) in _INSTEAD else "another"
    what = "another database" if named == "another" else f"{named} (jdbc:{named})"
    if is_target:
        raise OperatorError(
            f"db.url names {what}, and changes are applied to PostgreSQL only",
            where=where,
            do="keep this DbWriter, or write db.url of the PostgreSQL database that takes its place",
        )
    raise OperatorError(
        f"db.url names {what}, and triggers capture in PostgreSQL only",
        where=where,
        do=_INSTEAD.get(named, "capture with a Debezium connector, and read its events: capture.source: debezium"),
    )


def database_of(url: str, user: str, *, has_password: bool, variable: str, where: str) -> Database:
    """Translate a url of the driver.

    Args:
        url: Of PostgreSQL; see `refuse_other_databases`.
        user: `db.user`; an option `user` of the url goes before it, as in the driver.
        has_password: Whether `db.password` is there. Its value is not needed.
        variable: The environment variable that is to hold the password.
        where: The file, for errors.

    Raises:
        ConfigError: A host or the database is malformed. The message does not repeat the url: it may hold a password.
    """
    rest, _, query = url.removeprefix(_POSTGRESQL).partition("?")
    options = dict(parse_qsl(query, keep_blank_values=True))
    hosts, database = _place(rest, where)
    user = options.pop("user", user)
    has_password = options.pop("password", None) is not None or has_password
    schema = _schema(options.pop("currentSchema", ""))
    name = database or user
    if ";" in name:
        # As other drivers have their options: a password among them would go into the file.
        raise ConfigError(
            "db.url has a database that cannot be read: it has a ;",
            where=where,
            do="write jdbc:postgresql://host:port/database?option=value&option=value",
        )
    kept, remarks = _options(options)
    login = quote(user, safe="")
    if login and has_password:
        login += f":${{env:{variable}}}"
    query = "&".join(f"{option}={quote(value, safe='/')}" for option, value in kept.items())
    translated = f"postgresql://{login}{'@' if login else ''}{hosts}/{quote(name, safe='')}"
    found = Database(translated + ("?" + query if query else ""), name, schema, user, remarks=remarks)
    if has_password and login:
        found.variables.append(variable)
    return found


def _schema(search_path: str) -> str:
    """The first schema of a search path, in small letters unless it is quoted."""
    first = search_path.partition(",")[0].strip()
    return (first.strip('"') if first.startswith('"') else first.lower()) or "public"


def _place(rest: str, where: str) -> tuple[str, str]:
    """The hosts as libpq writes them, and the database; empty where the url has none."""
    if not rest.startswith("//"):
        return "localhost:5432", unquote(rest.removeprefix("/"))
    found = _PLACE.fullmatch(rest)
    hosts = (found["hosts"] if found else "").split(",")
    if found is None or not all(not host or _HOST.fullmatch(host) for host in hosts):
        raise ConfigError(
            "db.url has a host that cannot be read", where=where, do="write jdbc:postgresql://host:port/database"
        )
    return ",".join(host or "localhost" for host in hosts), unquote(found["database"] or "")


def _options(options: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Options that libpq has, under its names, and what has become of the others."""
    kept: dict[str, str] = {}
    remarks: dict[str, str] = {}
    for option, value in options.items():
        if option in _SAME:
            kept[option] = value
            if value.endswith((".pk8", ".der")):
                remarks[option] = "libpq reads a key in PEM: openssl pkcs8 -inform DER -in KEY.pk8 -out KEY.pem"
        elif option in _RENAMED:
            kept[_RENAMED[option]] = value
        elif option == "ssl" and value in ("", "true"):
            if "sslmode" not in options:
                kept["sslmode"] = "verify-full"
        elif option == "ssl":
            remarks[option] = "libpq encrypts where the server can; sslmode=disable keeps it from that"
        elif option == "targetServerType" and value in _WRITABLE:
            kept["target_session_attrs"] = "read-write"
        elif is_secret(option):
            remarks[option] = "not written; say what libpq needs in the url, as ${env:NAME}"
        else:
            remarks[option] = "an option of the JDBC driver that libpq does not have"
    return kept, remarks
