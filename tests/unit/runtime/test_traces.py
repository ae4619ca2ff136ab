"""Traces across HTTP, calls and servers, kept by OpenTelemetry; and that off is off."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from stelae.actors.ray_host.recovery_spans import RecoverySpans
from stelae.core import tracing
from stelae.core.current import CURRENT
from stelae.core.errors import InvalidArgument
from stelae.core.ids import TabletId
from stelae.core.rpc import EMPTY, Body, Call, Empty, Method, Reply
from stelae.runtime.tcp.frames import asked_by, asked_of
from stelae.runtime.traces import OpenTelemetrySpans, trace_as
from stelae.serve.gateway.request_ids import RequestIds
from tests.traces_collector import collecting
from tests.unit.runtime.tcp.peers_world import UUID, Servers

PARENT = "00-" + "ab" * 16 + "-" + "cd" * 8 + "-01"
UNSAMPLED = PARENT[:-2] + "00"


class Touch(Body, frozen=True):
    tablet_id: TabletId


TOUCH = Method("t.touch", Touch, Empty, "of tests, with one server")
ONWARD = Method("t.onward", Touch, Empty, "of tests, with one server")
TABLET = TabletId("ef" * 16)


@pytest.fixture
def kept() -> Iterator[Any]:
    """An exporter in memory, whose spans are those of this process."""
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
    from opentelemetry.sdk.trace.sampling import ALWAYS_ON, ParentBased

    provider = TracerProvider(sampler=ParentBased(ALWAYS_ON))
    exporter = InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    token = CURRENT.set(None)
    tracing.use(OpenTelemetrySpans(provider))
    yield exporter
    tracing.use(None)
    CURRENT.reset(token)


def spans_of(exporter: Any) -> dict[str, Any]:
    """By kind and name; each is there once."""
    found = {f"{s.kind.name.lower()} {s.name}": s for s in exporter.get_finished_spans()}
    assert len(found) == len(exporter.get_finished_spans())
    return found


async def test_of_what_anybody_may_send_spans_and_lines_have_little(kept: Any) -> None:
    """A path is noted before anybody has shown a token: its beginning, escaped. Of an error its
    kind, and not the text with keys in it."""
    seen: list[Any] = []

    async def broken(scope: Any, receive: Any, send: Any) -> None:
        seen.append(CURRENT.get())
        await send({"type": "http.response.start", "status": 500, "headers": []})

    async def received() -> dict[str, Any]:
        raise AssertionError("the body is not read")

    async def sent(message: Any) -> None:
        pass

    path = "/a\nforged\u202e" + "x" * 5000
    scope = {"type": "http", "method": "GET" + "T" * 99, "path": path, "headers": []}
    await RequestIds(broken)(scope, received, sent)
    (span,) = kept.get_finished_spans()
    assert span.attributes["url.path"].startswith(r"/a\nforged\u202exxx")
    assert len(span.attributes["url.path"]) < 300
    assert len(span.name) < 30
    assert span.status.description == "HTTP 500"
    assert seen[0][1] == f"GET{'T' * 17} {span.attributes['url.path']}"
    assert tracing.active is not None
    begun = tracing.active.begin("x", "internal", "", {})
    assert begun is not None
    begun.end("NotFound: row 'ada@example.org' of table t")
    assert kept.get_finished_spans()[1].status.description == "NotFound"


async def test_a_request_is_one_trace_through_http_and_servers(servers: Servers, kept: Any) -> None:
    """The caller's trace goes on; each call is a span of the caller's, with one of the server's
    in it, which has the tablet."""
    there, between = servers.peers(), servers.peers()

    async def touch(call: Call[Touch]) -> Reply[Empty]:
        return EMPTY

    async def onward(call: Call[Touch]) -> Reply[Empty]:
        await between.call(there.address, TOUCH, call.body, timeout_s=10.0)
        raise InvalidArgument("not so")

    await there.listen(UUID, {TOUCH: touch})
    here, client = servers.peers(), servers.peers()
    await here.listen(UUID, {ONWARD: onward})

    async def page(request: Request) -> Response:
        with pytest.raises(InvalidArgument):
            await client.call(here.address, ONWARD, Touch(TABLET), timeout_s=10.0)
        return PlainTextResponse("x", 503)

    app = RequestIds(Starlette(routes=[Route("/a", page)]))
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://s") as http:
        await http.get("/a", headers={"traceparent": PARENT, "X-Request-Id": "r1"})
        await http.get("/none", headers={"traceparent": UNSAMPLED})
    found = spans_of(kept)
    chain = ["server HTTP GET", "client t.onward", "server t.onward", "client t.touch"]
    chain.append("server t.touch")
    assert set(found) == set(chain)
    assert {span.context.trace_id for span in found.values()} == {int("ab" * 16, 16)}
    parents = [int("cd" * 8, 16), *(found[name].context.span_id for name in chain)]
    assert [found[name].parent.span_id for name in chain] == parents[:-1]
    root = found["server HTTP GET"]
    assert root.attributes["stelae.request_id"] == "r1"
    assert root.attributes["http.response.status_code"] == 503
    assert found["server t.touch"].attributes["stelae.tablet"] == TABLET
    failed = {name for name, span in found.items() if not span.status.is_ok}
    assert failed == {"server HTTP GET", "client t.onward", "server t.onward"}
    assert found["server t.onward"].attributes["error.type"] == "InvalidArgument"


async def test_what_belongs_to_no_trace_makes_none(servers: Servers, kept: Any) -> None:
    """Servers call each other all the time: heartbeats are nobody's trace."""
    there, client = servers.peers(), servers.peers()

    async def touch(call: Call[Touch]) -> Reply[Empty]:
        return EMPTY

    await there.listen(UUID, {TOUCH: touch})
    await client.call(there.address, TOUCH, Touch(TABLET), timeout_s=10.0)
    assert spans_of(kept) == {}


def test_recoveries_are_told_once_with_their_phases(kept: Any) -> None:
    """At the times when they were, once they are over."""
    running = {
        "started": 1000.0, "server": "tserver-0", "state": "running", "cause": "it is dead",
        "engine": "native", "tablets_total": 2, "phases_s": {"raised": 0.5},
    }  # fmt: skip
    done = {**running, "state": "done", "phases_s": {"raised": 0.5, "fenced": 1.0, "running": 4.0}}
    told = RecoverySpans()
    assert tracing.active is not None
    for recoveries in ([running], [done], [done], []):
        told.tell(tracing.active, recoveries)
    found = spans_of(kept)
    names = ("recovery", "recovery raised", "recovery fenced", "recovery running")
    assert set(found) == {f"internal {name}" for name in names}
    whole = found["internal recovery"]
    assert (whole.start_time, whole.end_time) == (1000 * 10**9, 1004 * 10**9)
    assert whole.attributes["stelae.lost_server"] == "tserver-0"
    last = found["internal recovery running"]
    assert (last.start_time, last.end_time) == (1001 * 10**9, 1004 * 10**9)
    assert last.parent.span_id == whole.context.span_id


def test_a_piece_of_work_that_fails_is_told_as_failed(kept: Any) -> None:
    """Steps of an apply; without a trace around them they begin one."""
    with tracing.spanned("apply") as whole:
        with pytest.raises(ValueError, match="no"), tracing.spanned("apply restart", whole):
            raise ValueError("no")
        assert whole
    found = spans_of(kept)
    assert not found["internal apply restart"].status.is_ok
    assert found["internal apply restart"].parent.span_id == found["internal apply"].context.span_id


def test_what_travels_with_a_call_is_only_believed_if_it_is_sane() -> None:
    """Names of methods have no zero byte; more than is known of is left out."""
    assert asked_of(asked_by(b"m", "r1", PARENT)) == (b"m", "r1", PARENT)
    assert asked_of(asked_by(b"m", "", "")) == (b"m", "", "")
    assert asked_of(b"m\0r1") == (b"m", "r1", "")
    assert asked_of(b"m\0<r1>\0" + PARENT.encode() + b"\0more") == (b"m", "", PARENT)
    assert asked_of(b"m\0\xff\0" + b"0" * 100) == (b"m", "", "")


def test_off_is_off_and_imports_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an endpoint, and where the SDK is switched off."""
    program = (
        "import sys, stelae.core.tracing as t; from stelae.runtime.traces import trace_as\n"
        "import stelae.runtime.tcp.peers\n"
        "assert not trace_as(cluster='c') and t.active is None\n"
        "assert not [m for m in sys.modules if m.startswith('opentelemetry')]"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    assert not trace_as(cluster="c")
    assert not trace_as("http://127.0.0.1:1", cluster="c")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "1000000"),
        ("OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", "many"),
    ],
)
def test_a_value_that_the_sdk_refuses_is_a_warning_and_no_end(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, name: str, value: str
) -> None:
    """A server starts without traces, and says so once."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setenv(name, value)
    monkeypatch.setattr(tracing, "active", None)
    assert not trace_as(cluster="c")
    assert tracing.active is None
    (said,) = [r.getMessage() for r in caplog.records if r.name == "stelae.runtime.traces"]
    assert "OTEL_" in said
    assert "Error" in said


@pytest.mark.parametrize("said_by", ["environment", "file", "both"])
def test_a_collector_gets_the_spans_by_otlp(monkeypatch: pytest.MonkeyPatch, said_by: str) -> None:
    """Over HTTP, as protobuf, with who says it. The standard variables say where to, or else the
    cluster's file: of both the variables win."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "none")
    with collecting() as collector:
        here = collector.url
        in_file = {"environment": "", "file": here, "both": "http://127.0.0.1:1"}[said_by]
        if said_by != "file":
            monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", here)
        try:
            assert trace_as(in_file, cluster="c", kind="master", server="master-0")
            with tracing.spanned("apply"):
                pass
            spans: Any = tracing.active
            assert spans.flush(10_000)
        finally:
            tracing.use(None)
    [(path, request)] = collector.got
    assert path == "/v1/traces"
    [resource] = request.resource_spans
    about = {a.key: a.value.string_value for a in resource.resource.attributes}
    assert about["service.name"] == "stelae"
    assert (about["stelae.cluster"], about["stelae.server"]) == ("c", "master-0")
    assert [s.name for s in resource.scope_spans[0].spans] == ["apply"]
