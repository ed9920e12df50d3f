"""The database of an old file, as a connection of a pipeline file."""

from __future__ import annotations

from penstock.errors import ConfigError
from penstock.xmlblaster.draft import Draft
from penstock.xmlblaster.jdbc import Database, database_of, refuse_other_databases
from penstock.xmlblaster.old_file import OldFile


def write_connection(draft: Draft, file: OldFile, name: str) -> Database:
    """Write the connection `name`, from `db.url`, `db.user` and `db.password`.

    The password is never written: the url refers to a variable of the environment.

    Raises:
        ConfigError: The url cannot be read.
        OperatorError: It is of another database than PostgreSQL.
    """
    url, user, has_password = file.take("db.url"), file.take("db.user") or "", file.take("db.password") is not None
    given = [key for key, is_given in (("db.user", bool(user)), ("db.password", has_password)) if is_given]
    path = ("connections", name)
    draft.set((*path, "type"), "postgres")
    if url is None:
        variable = f"{name.upper()}_URL"
        draft.set((*path, "url"), f"${{env:{variable}}}", f"{file.name} has no db.url")
        draft.variables[variable] = f"the url of the database, postgresql://user:password@host/database ({file.name})"
        for key in given:
            draft.remark(file.name, key, f"the url in {variable} has it")
        return Database("", "", "public", user)
    refuse_other_databases(url, is_target=name == "target", where=file.name)
    variable = f"{name.upper()}_PASSWORD"
    found = database_of(url, user, has_password=has_password, variable=variable, where=file.name)
    if "${" in found.name + found.user:
        raise ConfigError(
            "db.url or db.user refers to a variable that the file does not define",
            where=file.name,
            do="put the value in its place",
        )
    keys = ["db.url", *(key for key in given if key == "db.user" or found.variables)]
    draft.set((*path, "url"), found.url, f"{', '.join(keys)} of {file.name}")
    draft.count(file.name, *keys)
    for variable in found.variables:
        draft.comment((*path, "url"), f"the password is not written: set {variable}")
        draft.variables[variable] = f"db.password of {file.name}"
    if has_password and not found.variables:
        draft.remark(file.name, "db.password", "there is no db.user that it belongs to")
    for option, why in found.remarks.items():
        draft.comment((*path, "url"), f"{option} of db.url: {why}")
    return found
