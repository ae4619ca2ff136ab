"""The status page in a real browser, Debian's Chromium without a window: how it looks and behaves.

Without Chromium these tests say so and skip. ``STELAE_SHOTS=folder`` keeps what they saw.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pytest
import uvicorn
from playwright.sync_api import Request as PageRequest
from playwright.sync_api import sync_playwright
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Mount, Route

from stelae.client.database import AsyncDatabase
from stelae.core.records.tokens import Role
from stelae.core.schema.durability import replicas, segments
from stelae.core.schema.partition import HashPartition, Partitioning
from stelae.serve.app import make_app
from stelae.serve.gateway.tokens import TokenVerifier, make_token
from stelae.serve.pages.page import headers, status_page
from stelae.serve.pages.tables import View
from tests.front.status_documents import busy, evil, healthy, one_dead
from tests.served import served
from tests.services import need
from tests.until import until

NARROW, WIDE = 380, 1280
AA_TEXT, AA_LARGE = 4.5, 3.0
"""Contrast that WCAG 2.2 AA asks for."""
WAIT_MS = 120_000
CONTRASTS = """() => {
  const lit = (c) => { const [r, g, b] = c.map((v) => v / 255)
      .map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const parts = (text) => text.match(/[\\d.]+/g).map(Number);
  const back = (e) => { for (; e; e = e.parentElement) {
    const c = parts(getComputedStyle(e).backgroundColor);
    if (c.length < 4 || c[3] > 0) return c.slice(0, 3); }
    return parts(getComputedStyle(document.body).backgroundColor).slice(0, 3); };
  const found = [];
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const e = walk.currentNode.parentElement, style = getComputedStyle(e);
    if (!walk.currentNode.nodeValue.trim() || ["SCRIPT", "STYLE"].includes(e.tagName)) continue;
    if (style.visibility === "hidden" || e.closest(".visually-hidden, .skip")) continue;
    const [a, b] = [lit(parts(style.color).slice(0, 3)), lit(back(e))];
    const size = parseFloat(style.fontSize), bold = Number(style.fontWeight) >= 700;
    found.push({ text: walk.currentNode.nodeValue.slice(0, 40),
      ratio: (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05),
      large: size >= 24 || (bold && size >= 18.66) });
  }
  return found;
}"""
FILLS = """() => [...document.querySelectorAll(".bar rect")].map((e) => {
  const c = (text) => text.match(/[\\d.]+/g).slice(0, 3).map((v) => v / 255)
    .map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const a = c(getComputedStyle(e).fill), b = c(getComputedStyle(e.ownerSVGElement).backgroundColor);
  return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05); })"""


@contextmanager
def listening(app: Any) -> Iterator[str]:
    """An application on a port of its own, in a thread of its own."""
    config = uvicorn.Config(app, host="127.0.0.1", port=0, log_level="error", lifespan="on")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:

        def has_started() -> bool:
            assert thread.is_alive()
            return server.started

        until(has_started, 120.0, "uvicorn listens", poll_s=0.02)
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(20)


class Shown:
    """A server of pages made from documents; each answer is a second younger."""

    def __init__(self) -> None:
        self.documents = {"busy": busy(), "dead": one_dead(), "evil": evil(), "well": healthy()}
        self.asked = 0
        self.fails = False
        self.app = Starlette(routes=[Route("/{name}", self.page)])

    async def page(self, request: Request) -> Response:
        if self.fails:
            return Response("no", 503)
        self.asked += 1
        status = self.documents[request.path_params["name"]]
        status["time"] += 1.0
        query = request.query_params
        view = View(query.get("table", ""), int(query.get("page", 1)), int(query.get("refresh", 5)))
        return HTMLResponse(status_page(status, view), headers=headers())


@pytest.fixture(scope="module")
def shown() -> Shown:
    return Shown()


@pytest.fixture(scope="module")
def url(shown: Shown) -> Iterator[str]:
    with listening(shown.app) as base:
        yield base


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    found = shutil.which("chromium") or shutil.which("chromium-browser")
    chromium = need(found, "Chromium is not installed (Debian: apt-get install chromium)")
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=chromium, args=arguments)
        yield opened
        opened.close()


Open = Callable[..., Any]


@pytest.fixture
def tab(browser: Any) -> Iterator[Open]:
    """``tab(url, **context)``: a page. Nothing is logged by it, and all comes from its origin."""
    contexts, problems = [], []

    def open_tab(address: str, **options: Any) -> Any:
        width = options.pop("width", WIDE)
        context = browser.new_context(viewport={"width": width, "height": 900}, **options)
        context.set_default_timeout(WAIT_MS)
        contexts.append(context)
        page = context.new_page()
        parts = urlsplit(address)
        origin = f"{parts.scheme}://{parts.netloc}/"
        page.on("console", lambda message: problems.append(message.text))
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("dialog", lambda dialog: problems.append(dialog.message))

        def check(request: PageRequest) -> None:
            if not request.url.startswith((origin, "data:")):
                problems.append(f"asked for {request.url}")

        page.on("request", check)
        page.goto(address)
        return page

    open_tab.problems = problems  # type: ignore[attr-defined]
    yield open_tab
    for context in contexts:
        context.close()
    assert not problems


def keep(page: Any, name: str) -> None:
    """A picture, for whoever wants to see it."""
    if folder := os.environ.get("STELAE_SHOTS"):
        Path(folder).mkdir(parents=True, exist_ok=True)
        page.screenshot(path=str(Path(folder) / f"{name}.png"), full_page=True)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_has_contrast_enough_in_light_and_in_dark(
    tab: Open, url: str, scheme: str
) -> None:
    """WCAG AA, computed from what the browser made of it; and the two differ."""
    for name in ("busy", "dead"):
        page = tab(f"{url}/{name}?refresh=0", color_scheme=scheme)
        found = page.evaluate(CONTRASTS)
        assert len(found) > 100
        poor = [e for e in found if e["ratio"] < (AA_LARGE if e["large"] else AA_TEXT)]
        assert not poor
        assert all(ratio >= AA_LARGE for ratio in page.evaluate(FILLS))
        back = page.evaluate("getComputedStyle(document.body).backgroundColor")
        dark = sum(int(part) for part in back[4:-1].split(",")) < 3 * 64
        assert dark == (scheme == "dark")
        keep(page, f"{name}-{scheme}")


def test_nothing_scrolls_sideways_on_a_narrow_screen_but_the_tables_themselves(
    tab: Open, url: str
) -> None:
    """380 px, with all that a page may have in it; and each table can be scrolled by keyboard."""
    for name in ("busy", "dead", "evil", "well"):
        page = tab(f"{url}/{name}?refresh=0", width=NARROW)
        assert page.evaluate("document.documentElement.scrollWidth") <= NARROW, name
        regions = page.locator(".scroll")
        assert regions.count() >= 3
        assert regions.evaluate_all("all => all.every((e) => e.tabIndex === 0)")
        keep(page, f"{name}-narrow")
    page.locator("#tablet-scroll").focus()
    page.keyboard.press("ArrowRight")
    page.wait_for_function("() => document.getElementById('tablet-scroll').scrollLeft > 0")


def test_the_keyboard_reaches_everything_in_the_order_of_the_page(tab: Open, url: str) -> None:
    """The first stop skips the navigation; each stop can be seen; Enter follows a link."""
    page = tab(f"{url}/busy?refresh=0")
    stops = []
    for _ in range(60):
        page.keyboard.press("Tab")
        stop = page.evaluate(
            """() => { const e = document.activeElement;
            const s = getComputedStyle(e), r = e.getBoundingClientRect();
            return { what: e.id || e.getAttribute("href") || e.tagName,
              seen: s.outlineStyle !== "none" && parseFloat(s.outlineWidth) >= 2 &&
                r.bottom > 0 && r.top < innerHeight && r.left >= 0,
              y: r.top + scrollY } }"""
        )
        if stop["what"] == "BODY":
            break
        stops.append(stop)
    assert stops[0]["what"] == "#summary"
    names = [stop["what"] for stop in stops]
    parts = ["#summary", "#servers", "#tables", "#tablets", "#recoveries", "#work", "#events"]
    assert names[1:9] == ["refreshing", *parts]
    assert [n for n in names if n.endswith("-scroll")] == [
        f"{part}-scroll" for part in ("server", "table", "tablet", "recovery", "work", "event")
    ]
    assert all(stop["seen"] for stop in stops)
    assert [s["y"] for s in stops[9:]] == sorted(s["y"] for s in stops[9:])
    assert "to-page-10" in names
    page.locator("#to-page-2").focus()
    page.keyboard.press("Enter")
    page.wait_for_selector("text=Tablets 51 to 100 of 500")
    page.goto(f"{url}/busy?refresh=0")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "summary"


def test_a_refresh_keeps_focus_scroll_and_what_did_not_change(
    tab: Open, url: str, shown: Shown
) -> None:
    """New rows come in and old ones go around them; one that failed is told, and is made up for."""
    page = tab(f"{url}/busy?refresh=1", width=NARROW)
    page.evaluate(
        """() => { window.same = document.getElementById("to-page-3"); window.same.focus();
        document.getElementById("tablet-scroll").scrollLeft = 120; scrollTo(0, 900) }"""
    )
    before = page.evaluate("[scrollY, document.getElementById('tablet-scroll').scrollLeft]")
    first = page.locator("header time").get_attribute("datetime")
    status = shown.documents["busy"]
    status["events"].insert(0, {"id": 99, "time": status["time"], "text": "news", "mood": "calm"})
    status["tables"][2]["name"] = "renamed"
    page.wait_for_selector("#event-99")
    page.wait_for_selector("text=renamed")
    assert page.locator("header time").get_attribute("datetime") != first
    assert page.evaluate("document.activeElement === window.same && window.same.isConnected")
    after = page.evaluate("[scrollY, document.getElementById('tablet-scroll').scrollLeft]")
    assert after[1] == before[1]
    assert abs(after[0] - before[0]) < 200  # the browser keeps what is seen where it is
    shown.fails = True
    try:
        page.wait_for_selector("#stale:has-text('Not up to date: it answers 503')")
    finally:
        shown.fails = False
    page.wait_for_selector("#stale:has-text('Not up to date')", state="detached")
    problems = tab.problems  # type: ignore[attr-defined]
    assert problems
    assert all("503" in problem for problem in problems)  # Chromium's own word on it
    problems.clear()


def test_without_scripts_the_page_reloads_itself_and_everything_works(
    tab: Open, url: str, shown: Shown
) -> None:
    """Links page and choose; one link stops the reloading."""
    page = tab(f"{url}/busy?refresh=1", java_script_enabled=False)
    asked = shown.asked
    deadline = time.monotonic() + 120
    while shown.asked < asked + 2:
        assert time.monotonic() < deadline
        page.wait_for_timeout(200)
    page.locator("#refreshing").click()
    page.wait_for_selector("text=not by itself")
    page.locator("#to-page-2").click()
    page.wait_for_selector("text=Tablets 51 to 100 of 500")
    asked = shown.asked
    page.wait_for_timeout(1500)
    assert shown.asked == asked


def test_markup_in_names_does_nothing(tab: Open, url: str) -> None:
    """Neither when the page is loaded nor when it is brought up to date."""
    page = tab(f"{url}/evil?refresh=1")
    first = page.locator("header time").get_attribute("datetime")
    page.wait_for_function(
        "first => document.querySelector('header time').getAttribute('datetime') !== first",
        arg=first,
    )
    assert page.evaluate("window.hacked === undefined && document.images.length === 0")
    assert page.locator("text=<script>window.hacked").count() > 5


@pytest.mark.parametrize("prefix", ["", "/stelae/test"])
def test_a_killed_tserver_is_seen_dead_and_its_recovery_is_seen(
    tab: Open, tmp_path: Path, prefix: str
) -> None:
    """A real cluster behind the real application, at the root and below a prefix; the token is the
    browser's password. Nobody loads the page anew."""
    token, entry = make_token("admin", Role.READ)
    with served(tmp_path, tservers=3) as here:
        schema = pa.schema([pa.field("id", pa.int64(), False)])
        four = Partitioning(HashPartition(("id",), 4))

        async def make() -> None:
            database: AsyncDatabase = here.cluster.database
            for name, durability in (("flights", segments("disk")), ("<b>orders", replicas(3))):
                await database.create_table(
                    name, schema, key="id", partition=four, durability=durability
                )

        here.run(make())
        database = _on_loop_of(here)
        inner = make_app(database, TokenVerifier([entry]))
        app = Starlette(routes=[Mount(prefix, inner)]) if prefix else inner
        with listening(app) as base:
            login = {"username": "me", "password": token}
            page = tab(f"{base}{prefix}?refresh=1", http_credentials=login)
            page.wait_for_selector("#verdict:has-text('All is well')")
            assert page.locator("text=<b>orders").count() >= 1
            victim = here.cluster.tservers[0]
            name = victim.info.name
            here.run(victim.stop())
            page.wait_for_selector(f"#servers tr:has-text('{name}') .badge.bad")
            page.wait_for_selector(f"#recoveries tr:has-text('{name}') .badge.good")
            page.wait_for_selector("#verdict:has-text('not all is well')")
            page.wait_for_selector(f"#events:has-text('{name} was found dead')")
            assert name in page.locator("#findings").inner_text()
            page.locator("#tables a").first.click()
            page.wait_for_selector("#all-tables")
            keep(page, f"killed{prefix.replace('/', '-')}")


def _on_loop_of(here: Any) -> Callable[[], AsyncDatabase]:
    """A client for the application's own loop."""
    from stelae.runtime.client import client_runtime
    from tests.cluster_fixture import CLUSTER, SECRET

    def make() -> AsyncDatabase:
        asyncio.get_running_loop()
        return AsyncDatabase(client_runtime(CLUSTER, SECRET), here.link.masters, here.link.settings)

    return make
