"""Messages as the original watcher writes them, by hand."""

from __future__ import annotations

OPEN = "<attr name='_keepTransactionOpen'>true</attr>"

CREATE = """<?xml version='1.0' encoding='UTF-8' ?>
 <sql>
   <desc>
     <command>CREATE</command>
     <ident>t</ident>
     <colname type='int4' nullable='0' sqlType='4' pos='1' pk='true' pkName='t_pk'>id</colname>
     <colname type='varchar' nullable='1' colSize='40' charLength='40' sqlType='12' pos='2'>name</colname>
     <colname type='numeric' nullable='1' precision='12' scale='3' sqlType='2' pos='3'>amount</colname>
     <colname type='timestamp' nullable='1' colSize='29' sqlType='93' pos='4'>ts</colname>
     <colname type='bool' nullable='1' sqlType='-7' pos='5'>flag</colname>
     <colname type='bytea' nullable='1' sqlType='-2' pos='6'>photo</colname>
     <attr name='action'>CREATE</attr>
     <attr name='tableName'>t</attr>
     <attr name='schema'>public</attr>
     <attr name='replKey'>1</attr>
     <attr name='transaction'>0.1</attr>
     <attr name='extraReplKey'>2</attr>
     <attr name='_createCounter'>0</attr>
   </desc>
 </sql>"""

CONTENT = """<?xml version='1.0' encoding='UTF-8' ?>
 <sql>
   <desc>
     <command>REPLICATION</command>
     <ident>t</ident>
     <attr name='action'>INSERT</attr>
     <attr name='tableName'>t</attr>
     <attr name='schema'>public</attr>
     <attr name='replKey'>1</attr>
     <attr name='transaction'>0.1</attr>
     <attr name='_createCounter'>{counter}</attr>
   </desc>
{rows}
 </sql>"""


def message(txn: str, *rows: str, desc: str = "", command: str = "REPLICATION") -> str:
    """A message with rows, and more in its `<desc>`."""
    return (
        f"<?xml version='1.0' encoding='UTF-8' ?>\n <sql>\n   <desc>\n     <command>{command}</command>\n"
        f"     <ident>{txn}</ident>\n{desc}   </desc>\n{''.join(rows)} </sql>"
    )


def row(action: str, columns: str, key: int, txn: str, *, old: str | None = None) -> str:
    """A row of table t."""
    escaped = None if old is None else old.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    said = "" if escaped is None else f"<attr name='oldContent' encoding='forcePlain'>{escaped}</attr>"
    return (
        f"<row num='0'>  {columns}\n<attr name='schema'>public</attr><attr name='action'>{action}</attr>"
        f"<attr name='replKey'>{key}</attr><attr name='transaction'>{txn}</attr>{said}"
        "<attr name='tableName'>t</attr></row>\n"
    )


def cols(**values: str | None) -> str:
    """An image."""
    return "".join(
        f'<col name="{name}" type="null"/>' if value is None else f'<col name="{name}">{value}</col>'
        for name, value in values.items()
    )


def ddl(command: str, txn: str, key: int, *, more: str = "") -> str:
    """A message that table t was altered, dropped or emptied."""
    said = (
        f"<attr name='action'>{command}</attr><attr name='tableName'>t</attr><attr name='schema'>public</attr>"
        f"<attr name='replKey'>{key}</attr><attr name='transaction'>{txn}</attr>{more}\n"
    )
    return message(txn, desc=said, command=command)
