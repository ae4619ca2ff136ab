"""GETs from the caller's thread: every answer that is no row is left to the loop's way."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pyarrow as pa
import pytest

from stelae.client.http.direct import Answer, DirectGets
from stelae.client.http.one_row import row_fields, row_of
from stelae.core.schema.schema import TableSchema

SCHEMA = TableSchema.of(
    pa.schema([pa.field("id", pa.int64(), nullable=False), ("x", pa.float64())]), ["id"]
)
PROBLEM = "application/problem+json"
WHOLE = b'HTTP/1.1 200 OK\r\ncontent-type: application/json\r\netag: "7"\r\n'
BODY = b'{"id":1,"x":0.5}'


class Endpoint:
    """Answers each request with the next bytes; empty ones close, and None is silence."""

    def __init__(self) -> None:
        self.answers: list[bytes | None] = []
        self.accepted = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                made, _ = self._listener.accept()
            except OSError:
                return
            self.accepted += 1
            self._open.append(made)
            threading.Thread(target=self._serve, args=(made,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        received = b""
        while True:
            try:
                more = connection.recv(65536)
            except OSError:
                return
            if not more:
                return
            received += more
            if b"\r\n\r\n" not in received:
                continue
            received = b""
            answer = self.answers.pop(0)
            if answer is None:
                continue
            connection.sendall(answer)
            if not answer or b"content-length" not in answer:
                connection.close()
                return

    def close(self) -> None:
        self._listener.close()
        for each in self._open:
            each.close()


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    made = Endpoint()
    yield made
    made.close()


def whole(body: bytes = BODY) -> bytes:
    return WHOLE + b"content-length: %d\r\n\r\n" % len(body) + body


def test_a_connection_is_kept_and_a_broken_one_is_not(endpoint: Endpoint) -> None:
    """After a failure the next call has a new connection."""
    gets = DirectGets(f"http://127.0.0.1:{endpoint.port}/base", None, time.monotonic)
    endpoint.answers = [whole(), whole(), b"", whole()]
    for _ in range(2):
        answer = gets.get("/x", {}, 30.0)
        assert answer == Answer(200, "application/json", '"7"', BODY)
    assert endpoint.accepted == 1
    assert gets.get("/x", {}, 30.0) is None
    assert gets.get("/x", {}, 30.0) is not None
    assert endpoint.accepted == 2
    gets.close()
    assert gets._idle == []


@pytest.mark.parametrize(
    "answer",
    [
        None,
        b"",
        b"nonsense\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nshort",
        WHOLE + b"content-length: 20\r\n\r\n" + BODY,
    ],
    ids=["silent", "closed", "no http", "broken off", "too short"],
)
def test_an_answer_that_is_not_whole_is_none(endpoint: Endpoint, answer: bytes | None) -> None:
    """A silent server takes half of the call's time at most."""
    gets = DirectGets(f"http://127.0.0.1:{endpoint.port}", None, time.monotonic)
    endpoint.answers = [answer]
    assert gets.get("/x", {}, 1.0) is None
    assert gets._idle == []


def test_nobody_listens() -> None:
    """The loop's way has the words for it."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    assert DirectGets(f"http://127.0.0.1:{port}", None, time.monotonic).get("/x", {}, 5.0) is None


@pytest.mark.parametrize(
    "answer",
    [
        Answer(200, "text/html", '"7"', b"<html>"),
        Answer(200, "application/json", '"7"', b"[]"),
        Answer(200, "application/json", '"7"', b'{"id":1}'),
        Answer(200, "application/json", "", BODY),
        Answer(200, "application/json", '"7"', b'{"id":"a","x":1.5}'),
        Answer(304, "application/json", '"7"', BODY),
        Answer(404, PROBLEM, "", b'{"error":"TableNotFound","args":["t"]}'),
        Answer(404, "text/html", "", b'{"error":"RowNotFound"}'),
        Answer(503, PROBLEM, "", b'{"error":"RetryLater"}'),
    ],
)
def test_what_is_no_row_is_left_to_the_loop(answer: Answer) -> None:
    """Proxies answer anything."""
    assert row_of(answer, SCHEMA, (), with_version=True) is None


def test_a_row_and_its_absence() -> None:
    """The version is the ETag."""
    row = Answer(200, "application/json", '"7"', BODY)
    assert row_of(row, SCHEMA, (), with_version=True) == ({"id": 1, "x": 0.5, "_version": 7},)
    assert row_of(row, SCHEMA, ("x",), with_version=False) == ({"x": 0.5},)
    absent = Answer(404, PROBLEM, "", b'{"error":"RowNotFound","args":["t","(1,)"]}')
    assert row_of(absent, SCHEMA, (), with_version=False) == (None,)


def test_keys_that_a_query_cannot_name_exactly_are_left_to_the_loop() -> None:
    """Lone surrogates have no UTF-8; an empty value is told from none by nobody; and addresses
    are not long."""
    schema = TableSchema.of(pa.schema([pa.field("k", pa.string(), nullable=False)]), ["k"])
    assert row_fields(["a,b"], schema) == [("key", "a,b")]
    for key in ("", "\ud800", "x" * 1001):
        assert row_fields([key], schema) is None
