"""What the guard lets in: a share for each token, and bodies only of those with one."""

from __future__ import annotations

import asyncio
import gzip
import json
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from stelae.core.records.tokens import Role
from stelae.serve.bodies.problems import NotAuthenticated, error_response
from stelae.serve.gateway import arriving
from stelae.serve.gateway.audit import AuditLog
from stelae.serve.gateway.guard import Guard, Limits
from stelae.serve.gateway.tokens import Principal


class Tokens:
    """Knows two."""

    async def verify(self, token: str) -> Principal:
        if token not in ("reader", "boss"):
            raise NotAuthenticated("this token is not known")
        return Principal(token, Role.READ if token == "reader" else Role.ADMIN)


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers with the length of the body, once it has all of it."""
    try:
        body = await Request(scope, receive).body()
        answer = Response(str(len(body)))
    except Exception as error:  # as the application's handlers do
        answer = error_response(error)  # type: ignore[arg-type]
    await answer(scope, receive, send)


class Sent:
    """One request, whose body goes on when it is let to."""

    def __init__(self, guard: Guard, token: str, body: bytes = b"", **headers: str) -> None:
        self.goes_on, self.waits = asyncio.Event(), asyncio.Event()
        self.reads = 0
        self.answer: list[Message] = []
        self._parts = [body]
        named = {"authorization": f"Bearer {token}", **headers}
        scope: dict[str, Any] = {"type": "http", "method": "POST", "path": "/v1/tables"}
        scope["headers"] = [
            (name.replace("_", "-").encode(), value.encode()) for name, value in named.items()
        ]
        self.task = asyncio.create_task(guard(scope, self._receive, self._send))
        self.task.add_done_callback(lambda _: self.waits.set())

    async def _receive(self) -> Message:
        self.reads += 1
        if self._parts:
            return {"type": "http.request", "body": self._parts.pop(), "more_body": True}
        self.waits.set()
        await self.goes_on.wait()
        return {"type": "http.request", "body": b"", "more_body": False}

    async def _send(self, message: Message) -> None:
        self.answer.append(message)

    @property
    def status(self) -> int:
        return int(self.answer[0]["status"])

    @property
    def document(self) -> dict[str, Any]:
        return dict(json.loads(self.answer[1]["body"]))

    async def end(self) -> int:
        self.goes_on.set()
        await self.task
        return self.status


def guard(**limits: int) -> Guard:
    return Guard(echo, Tokens(), lambda: Limits(**limits), AuditLog())  # type: ignore[arg-type]


async def begun(*sent: Sent) -> None:
    """Until each waits for more of its body, or is answered."""
    for each in sent:
        await each.waits.wait()


async def test_one_token_takes_half_of_the_slots() -> None:
    """With bodies that never end; the admin goes on, and slots come back."""
    here = guard(requests=8)
    held = [Sent(here, "reader", b"x") for _ in range(4)]
    await begun(*held)
    refused = [Sent(here, "reader") for _ in range(3)]
    await begun(*refused)
    assert [each.status for each in refused] == [429] * 3
    assert "token 'reader'" in refused[0].document["detail"]
    assert await Sent(here, "boss", b"ab").end() == 200
    assert [await each.end() for each in held] == [200] * 4
    assert await Sent(here, "reader").end() == 200


async def test_one_token_holds_half_of_the_bytes_of_bodies() -> None:
    """Another one's bodies still have room, and room comes back; one body always fits."""
    here = guard(body_bytes=100, bodies_bytes=400)
    held = [Sent(here, "reader", b"x" * 100) for _ in range(2)]
    await begun(*held)
    assert await Sent(here, "reader", b"x").end() == 429
    assert await Sent(here, "boss", b"x" * 100).end() == 200
    assert [await each.end() for each in held] == [200] * 2
    assert await Sent(here, "reader", b"x" * 100).end() == 200
    assert await Sent(guard(body_bytes=100, bodies_bytes=100), "reader", b"x" * 100).end() == 200


async def test_nothing_is_read_of_who_has_no_token_or_too_long_a_body() -> None:
    """Nor counted."""
    here = guard(requests=2, body_bytes=10)
    unknown = Sent(here, "nobody", b"x")
    long = Sent(here, "boss", b"x", content_length="11")
    for sent, status in ((unknown, 401), (long, 413)):
        await sent.task
        assert (sent.status, sent.reads) == (status, 0)
    odd = Sent(here, "boss", b"x", content_encoding="br")
    await odd.task
    assert (odd.status, odd.reads) == (415, 0)
    assert (b"accept-encoding", b"gzip") in odd.answer[0]["headers"]


async def test_a_body_that_stands_still_is_408_and_leaves_its_slot(monkeypatch: Any) -> None:
    """With a problem that says what a body has to do; the connection ends with it."""
    monkeypatch.setattr(arriving, "STALL_S", 0.01)
    here = guard(requests=2)
    slow = Sent(here, "reader", b"abc")
    await slow.task
    assert slow.status == 408
    assert slow.document["type"] == "/problems/body-too-slow"
    assert "1024 bytes for each second" in slow.document["detail"]
    assert (b"connection", b"close") in slow.answer[0]["headers"]
    assert await Sent(here, "reader").end() == 200


async def test_a_packed_body_counts_as_it_is_unpacked() -> None:
    """The bound of a body holds for what comes out."""
    here = guard(body_bytes=1000)
    packed = gzip.compress(b"x" * 1000)
    assert await Sent(here, "boss", packed, content_encoding="gzip").end() == 200
    packed = gzip.compress(b"x" * 1001)
    assert await Sent(here, "boss", packed, content_encoding="gzip").end() == 413
