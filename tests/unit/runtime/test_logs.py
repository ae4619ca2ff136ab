"""What a line of a log says: of the process, and of what was worked on, across servers."""

from __future__ import annotations

import asyncio
import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from stelae.core.current import CURRENT, is_sane_id, request_id, working
from stelae.core.ids import TabletId
from stelae.core.rpc import EMPTY, Body, Call, Empty, Method, Reply
from stelae.core.tasks import Tasks
from stelae.runtime.logs import log_also, log_as
from stelae.runtime.tcp import handshake
from tests.unit.runtime.tcp.peers_world import UUID, Servers


class Touch(Body, frozen=True):
    tablet_id: TabletId


TOUCH = Method("t.touch", Touch, Empty, "of tests, with one server")
ONWARD = Method("t.onward", Touch, Empty, "of tests, with one server")
TABLET = TabletId("ab" * 16)


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> Iterator[io.StringIO]:
    """What `log_as` writes, with no handler of others in its way."""
    root, stelae = logging.getLogger(), logging.getLogger("stelae")
    level, stream = stelae.level, io.StringIO()
    monkeypatch.setattr(root, "handlers", [])
    log_as(stream, cluster="c", kind="tserver", server="tserver-0")
    token = CURRENT.set(None)
    yield stream
    CURRENT.reset(token)
    stelae.setLevel(level)


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_line_is_json_with_who_says_it_and_nothing_empty(written: io.StringIO) -> None:
    """One line each, tracebacks included; a UUID once it is known."""
    logger = logging.getLogger("stelae.some.where")
    logger.info("hello %s", "wörld\n")
    log_also(uuid="u1", incarnation=3)
    try:
        raise ValueError("no\nway")
    except ValueError:
        logger.exception("failed")
    logger.debug("not heard")
    first, second = lines(written)
    assert first.pop("time").endswith("+00:00")
    who = {"cluster": "c", "kind": "tserver", "server": "tserver-0"}
    said = {"level": "info", "logger": "stelae.some.where", "message": "hello wörld\n"}
    assert first == who | said
    assert (second["uuid"], second["incarnation"], second["level"]) == ("u1", 3, "error")
    assert second["exception"].startswith("Traceback")


def test_lines_for_people_say_the_same(
    written: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the environment, as is the level."""
    monkeypatch.setenv("STELAE_LOG_FORMAT", "console")
    monkeypatch.setenv("STELAE_LOG_LEVEL", "debug")
    log_as(cluster="c", kind="tserver", server="tserver-0")
    CURRENT.set(("r1", "m", Touch(TABLET), ""))
    logging.getLogger("stelae.x").debug("hello")
    line = written.getvalue()
    assert "DEBUG   tserver-0 stelae.x: hello [request_id=r1 method=m tablet_id=abab" in line


def test_no_text_makes_a_line_of_its_own(
    written: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does it move a cursor or turn the direction of writing; tracebacks are indented."""
    monkeypatch.setenv("STELAE_LOG_FORMAT", "console")
    log_as(cluster="c", kind="tserver", server="tserver-0")
    CURRENT.set(("r1", "GET /a\n2026 forged", None, ""))
    try:
        raise ValueError("so\x1b[2J\n2026 forged\r2026 forged")
    except ValueError:
        logging.getLogger("stelae.x").exception("wörld\u202e\n2026 forged")
    first, *rest = written.getvalue().split("\n")
    assert r"wörld\u202e\n2026 forged [request_id=r1 method=GET /a\n2026 forged]" in first
    assert all(line.startswith("  ") for line in rest if line)
    assert "\x1b" not in written.getvalue()
    assert "\r" not in written.getvalue()


@pytest.mark.parametrize(
    ("text", "sane"),
    [("a-B_9.x:y", True), ("", False), ("x" * 64, True), ("x" * 65, False), ("a b", False)]
    + [(bad, False) for bad in ("a\n", "é", '"', "a\0b", "<x>")],
)
def test_ids_of_others_are_taken_over_if_they_are_sane(text: str, sane: bool) -> None:
    """They go into logs, headers, and frames."""
    assert is_sane_id(text) is sane


async def test_a_requests_id_goes_with_calls_from_server_to_server(
    servers: Servers, written: io.StringIO
) -> None:
    """With method and tablet; calls without one are logged without one, on the same connection."""
    logger = logging.getLogger("stelae.test")
    there, peers = servers.peers(), servers.peers()
    await there.listen(UUID, {TOUCH: _saying(logger, "there")})

    async def onward(call: Call[Touch]) -> Reply[Empty]:
        logger.info("here")
        await asyncio.sleep(0)
        await peers.call(there.address, TOUCH, call.body, timeout_s=10.0)
        return EMPTY

    here = servers.peers()
    await here.listen(UUID, {ONWARD: onward})
    client = servers.peers()
    CURRENT.set(("req-1", "GET /", None, ""))
    await client.call(here.address, ONWARD, Touch(TABLET), timeout_s=10.0)
    CURRENT.set(None)
    await client.call(here.address, ONWARD, Touch(TABLET), timeout_s=10.0)
    said = [
        (e["message"], e["method"], e["tablet_id"], e.get("request_id")) for e in lines(written)
    ]
    assert said == [
        ("here", "t.onward", TABLET, "req-1"),
        ("there", "t.touch", TABLET, "req-1"),
        ("here", "t.onward", TABLET, None),
        ("there", "t.touch", TABLET, None),
    ]


async def test_a_server_of_before_is_sent_no_request_ids(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would not know the method: it did not say in the handshake that it understands."""
    monkeypatch.setattr(handshake, "KNOWS_REQUESTS", 0)
    there, here, seen = servers.peers(), servers.peers(), []

    async def touch(call: Call[Touch]) -> Reply[Empty]:
        seen.append(request_id())
        return EMPTY

    await there.listen(UUID, {TOUCH: touch})
    token = CURRENT.set(("r1", "m", None, ""))
    await here.call(there.address, TOUCH, Touch(TABLET), timeout_s=10.0)
    CURRENT.reset(token)
    assert seen == [""]


def _saying(logger: logging.Logger, word: str) -> Any:
    async def handler(call: Call[Touch]) -> Reply[Empty]:
        logger.info(word)
        return EMPTY

    return handler


async def test_background_tasks_are_nobodys_request() -> None:
    """They go on after whoever was the cause; tasks that are waited for are the request's."""
    seen: list[str] = []

    async def look() -> None:
        seen.append(request_id())

    tasks = Tasks()
    token = CURRENT.set(("req-1", "m", None, ""))
    try:
        await asyncio.gather(tasks.spawn(look(), "background"), asyncio.create_task(look()))
        assert seen == ["", "req-1"]
        assert request_id() == "req-1"
    finally:
        CURRENT.reset(token)
    await tasks.close()


def test_what_is_worked_on_is_looked_at_only_when_somebody_logs() -> None:
    """A body without ids says none; one whose id is no text neither."""

    class Other(msgspec.Struct):
        tablet_id: int = 7

    token = CURRENT.set(("", "m", Other(), ""))
    try:
        assert working() == {"method": "m"}
    finally:
        CURRENT.reset(token)
    assert "request_id" not in working()
