"""Keys of rows in requests: each string has a form that no client and no proxy changes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from urllib.parse import quote, urlencode

import httpx
import pyarrow as pa
import pytest
import requests
from hypothesis import example, given
from hypothesis import strategies as st
from starlette.requests import Request

from stelae.core.errors import InvalidArgument
from stelae.serve.gateway.requests import fields_of
from stelae.serve.routes.row_keys import row_key

ODD = [
    *("", ".", "..", "...", "%2e", "%2E%2e", "%252e", "/", "//", "a/b", "a/../b", "../t", "/etc"),
    *(
        ",",
        "a,b",
        "+",
        " ",
        "a b",
        "&",
        "=",
        "a&key=b",
        "?",
        "#",
        ";",
        "\\",
        "..\\",
        "~",
        "é",
        "日本",
    ),
    *("\U0001f600", "\x00", "\r\n", "%", "%%", "rows:get", "key", "\u2028", "a\tb"),
]


def table_of(*kinds: pa.DataType) -> Any:
    names = [f"k{place}" for place in range(len(kinds))]
    schema = pa.schema(list(zip(names, kinds, strict=True)))
    return SimpleNamespace(name="t", key=tuple(names), schema=schema)


def asked(target: str) -> Request:
    """A request as a server that changes nothing hands it on."""
    path, _, query = target.partition("?")
    scope = {"type": "http", "method": "GET", "headers": []}
    raw = {"path": path, "raw_path": path.encode(), "query_string": query.encode()}
    return Request({**scope, **raw})


def targets(texts: list[str]) -> list[str]:
    """What different clients make of a key in the query."""
    url, pairs = "http://h/v1/tables/t/rows", [("key", text) for text in texts]
    prepared = requests.Request("GET", url, params=pairs).prepare()
    by_hand = "&".join(f"key={quote(text, safe='')}" for text in texts)
    return [
        httpx.Request("GET", url, params=tuple(pairs)).url.raw_path.decode(),
        prepared.path_url,
        f"/v1/tables/t/rows?{urlencode(pairs)}",
        f"/v1/tables/t/rows?columns=v&{by_hand}",
    ]


@given(st.lists(st.text(), min_size=1, max_size=3))
@example([""])
@example([".", ".."])
def test_every_key_comes_back_from_a_query(texts: list[str]) -> None:
    """Whichever client made the query, and however many columns the key has."""
    table = table_of(*[pa.string()] * len(texts))
    for target in targets(texts):
        assert row_key(asked(target), table) == tuple(texts), target


@pytest.mark.parametrize("text", ODD, ids=ascii)
def test_odd_keys_come_back_from_a_query(text: str) -> None:
    """Those that paths lose: dots, slashes, nothing; those that look like an escape."""
    for target in targets([text]):
        assert row_key(asked(target), table_of(pa.string())) == (text,), target


@given(st.text(min_size=1))
@example("a,b")
@example("%2e%2e")
def test_a_key_in_a_path_comes_back_or_is_refused(text: str) -> None:
    """Refused is what a client or a proxy would change: empty and dot segments."""
    request = asked(f"/v1/tables/t/rows/{quote(text, safe='')}")
    if {"", ".", ".."}.isdisjoint(text.split("/")):
        assert row_key(request, table_of(pa.string())) == (text,)
    else:
        with pytest.raises(InvalidArgument, match=r"\?key="):
            row_key(request, table_of(pa.string()))


@pytest.mark.parametrize(
    "raw",
    [
        "",
        ".",
        "..",
        "%2e",
        "%2E%2E",
        ".%2e",
        "../x",
        "..%2Fx",
        "x/..",
        "x%2f..",
        "x//y",
        "/x",
        "x/",
    ],
)
def test_a_path_that_others_would_change_is_refused(raw: str) -> None:
    """As raw sockets can send it; the message says how to name such a row."""
    with pytest.raises(InvalidArgument, match=r"rows\?key="):
        row_key(asked(f"/v1/tables/t/rows/{raw}"), table_of(pa.string()))


def test_a_key_is_named_once_and_whole() -> None:
    """Not in both places, not with too few values; other types than text are read by type."""
    two = table_of(pa.int64(), pa.binary())
    assert row_key(asked("/v1/tables/t/rows?key=7&key=_w"), two) == (7, b"\xff")
    assert row_key(asked("/v1/tables/t/rows/7,_w"), two) == (7, b"\xff")
    for wrong in ("rows/7,_w?key=7&key=_w", "rows?key=7", "rows/7", "rows", "rows?key=x&key=_w"):
        with pytest.raises(InvalidArgument):
            row_key(asked(f"/v1/tables/t/{wrong}"), two)
    with pytest.raises(InvalidArgument, match="UTF-8"):
        row_key(asked("/v1/tables/t/rows?key=%FF"), table_of(pa.string()))


def test_fields_of_a_query_are_read_as_forms_are() -> None:
    """A plus sign is a space; a field without a value is empty."""
    request = asked("/v1/tables/t/rows?key=a+b&other=1&key&key=%2B&keys=x")
    assert fields_of(request, "key") == [b"a b", b"", b"+"]
