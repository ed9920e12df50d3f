"""What old files are made of: Java's properties, JDBC urls, prefixes."""

from __future__ import annotations

import pytest

from penstock.errors import ConfigError
from penstock.xmlblaster.jdbc import database_of
from penstock.xmlblaster.properties import parse_properties
from penstock.xmlblaster.tables import cleaned_prefix


@pytest.mark.parametrize(
    ("content", "values"),
    [
        pytest.param("a=1\nb:2\nc 3\nd\t=\t4\n", {"a": "1", "b": "2", "c": "3", "d": "4"}, id="separators"),
        pytest.param("a = = 1", {"a": "= 1"}, id="only one sign separates"),
        pytest.param("a  :  1 ", {"a": "1 "}, id="white space behind a value is part of it"),
        pytest.param("# c\n  ! c \\\na=1", {"a": "1"}, id="a comment does not go on"),
        pytest.param("a=1,\\\n   2,\\\r\n\t3", {"a": "1,2,3"}, id="continued, without the white space in front"),
        pytest.param("a=1\\\n# 2", {"a": "1# 2"}, id="no comment in a continued line"),
        pytest.param("a=1\\\n\nb=2", {"a": "1", "b": "2"}, id="continued by an empty line"),
        pytest.param("a=c:\\\\temp\\\\\nb=2", {"a": "c:\\temp\\", "b": "2"}, id="an even number of backslashes ends"),
        pytest.param("a=1\\", {"a": "1"}, id="a backslash at the end of the file"),
        pytest.param("a=1\n\\", {"a": "1", "": ""}, id="only a backslash at the end of the file"),
        pytest.param("\\\n# c\\\nb=2\n\\\n  \n", {"b": "2"}, id="only a backslash, and a comment"),
        pytest.param("a\\ b\\:c\\=d=1", {"a b:c=d": "1"}, id="separators inside a key"),
        pytest.param("a=\\t\\n\\q\\#", {"a": "\t\nq#"}, id="escapes"),
        pytest.param("a=M\\u00fcller\\uD83D\\uDE00", {"a": "Müller😀"}, id="unicode"),
        pytest.param("a=1\nb=2\na=3", {"a": "3", "b": "2"}, id="the last value of a key counts"),
        pytest.param("a\nb=\n= c\r d", {"a": "", "b": "", "": "c", "d": ""}, id="nothing, and a carriage return"),
        pytest.param("\f\n   \n\\\n\n#c\n", {}, id="nothing at all"),
    ],
)
def test_properties_are_read_as_java_reads_them(content: str, values: dict[str, str]) -> None:
    assert parse_properties(content.encode(), "f").values == values


def test_text_is_utf_8_or_else_iso_8859_1() -> None:
    for content in ("a=Müller".encode("iso-8859-1"), "a=Müller".encode(), b"\xef\xbb\xbf" + "a=Müller".encode()):
        assert parse_properties(content, "f").values == {"a": "Müller"}
    assert parse_properties(b"a=1\nb=2\na=1", "f").repeated == ("a",)


@pytest.mark.parametrize("content", ["a=1\nb=\\u12", "a=1\nb=\\uD83D", "a=1\nb=\\uDE00\\uD83D"])
def test_an_escape_that_is_none_is_named_by_its_line(content: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_properties(content.encode(), "old")
    assert refused.value.where == "old:2"


@pytest.mark.parametrize(
    ("jdbc", "url"),
    [
        ("jdbc:postgresql:shop", "postgresql://u:${env:P}@localhost:5432/shop"),
        ("jdbc:postgresql:/", "postgresql://u:${env:P}@localhost:5432/u"),
        ("jdbc:postgresql://h/", "postgresql://u:${env:P}@h/u"),
        ("jdbc:postgresql://h:1,i:2/a%20b", "postgresql://u:${env:P}@h:1,i:2/a%20b"),
        ("jdbc:postgresql://[::1]:5/shop", "postgresql://u:${env:P}@[::1]:5/shop"),
        ("jdbc:postgresql://h/d?user=o/k&password=x", "postgresql://o%2Fk:${env:P}@h/d"),
        ("jdbc:postgresql://h/d?ssl=true", "postgresql://u:${env:P}@h/d?sslmode=verify-full"),
        ("jdbc:postgresql://h/d?ssl&sslmode=require", "postgresql://u:${env:P}@h/d?sslmode=require"),
        ("jdbc:postgresql://h/d?ApplicationName=a+b", "postgresql://u:${env:P}@h/d?application_name=a%20b"),
        ("jdbc:postgresql://h,i/d?targetServerType=primary", "postgresql://u:${env:P}@h,i/d?target_session_attrs=read-write"),
        ("jdbc:postgresql://h/${x}", "postgresql://u:${env:P}@h/%24%7Bx%7D"),
    ],
)  # fmt: skip
def test_a_jdbc_url_becomes_that_of_libpq(jdbc: str, url: str) -> None:
    assert database_of(jdbc, "u", has_password=True, variable="P", where="f").url == url


def test_options_that_libpq_does_not_have_are_named_without_their_values() -> None:
    found = database_of(
        "jdbc:postgresql://h/d?sslpassword=s3cret&prepareThreshold=7&currentSchema=sales,x&sslkey=a.pk8",
        "",
        has_password=True,
        variable="P",
        where="f",
    )
    assert (found.url, found.schema, found.variables) == ("postgresql://h/d?sslkey=a.pk8", "sales", [])
    assert set(found.remarks) == {"sslpassword", "prepareThreshold", "sslkey"}
    assert "s3cret" not in str(found.remarks)


def test_prefixes_are_cleaned_as_xmlblaster_does() -> None:
    assert cleaned_prefix("/a\\b c.d:e[f]g-") == "ab_c_d_e_f_g_"
