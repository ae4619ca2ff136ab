"""The status page as HTML: well formed, accessible, bounded, and nothing in it but text."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from stelae.serve.pages.health import findings
from stelae.serve.pages.html import duration, moment, size
from stelae.serve.pages.page import headers, status_page
from stelae.serve.pages.tables import PAGE_TABLETS, View
from tests.front.status_documents import EVIL, busy, empty, evil, healthy, one_dead

VOID = {"meta", "link", "br", "img"}


@dataclass
class Element:
    tag: str
    attributes: dict[str, str]
    parents: list[str]
    text: str = ""


@dataclass
class Page(HTMLParser):
    """Every element, with all text in it; raises where tags do not match."""

    elements: list[Element] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()
        self._open: list[Element] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        assert len(names) == len(set(names)), (tag, names)
        element = Element(
            tag, {name: value or "" for name, value in attrs}, [e.tag for e in self._open]
        )
        self.elements.append(element)
        if tag not in VOID and self.get_starttag_text()[-2:] != "/>":  # type: ignore[index]
            self._open.append(element)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        assert self._open[-1].tag == tag, f"</{tag}> ends {self._open[-1]}"
        self._open.pop()

    def handle_data(self, data: str) -> None:
        for element in self._open:
            element.text += data

    def all(self, tag: str, **attributes: str) -> list[Element]:
        wanted = attributes
        return [
            e for e in self.elements
            if e.tag == tag and all(e.attributes.get(n) == v for n, v in wanted.items())
        ]  # fmt: skip

    def by_id(self, name: str) -> Element:
        found = [e for e in self.elements if e.attributes.get("id") == name]
        assert len(found) == 1, (name, len(found))
        return found[0]


def parse(status: dict[str, Any], view: View | None = None) -> Page:
    page = Page()
    page.feed(status_page(status, view or View()))
    page.close()
    assert not page._open
    return page


def test_links_of_tables_with_long_names_lead_there() -> None:
    """Text is cut at some length; an address is not."""
    name, status = "ü&" * 120, busy()
    status["tables"][0]["name"] = name
    links = [e.attributes.get("href") or "" for e in parse(status, View(name)).elements]
    queries = [parse_qs(urlsplit(each).query) for each in links]
    assert sum(query.get("table") == [name] for query in queries) >= 2
    assert not any("…" in each for each in links)


DOCUMENTS = (empty, healthy, one_dead, busy, evil)


@pytest.mark.parametrize("document", DOCUMENTS)
def test_the_page_is_well_formed_and_has_what_screen_readers_go_by(document: Any) -> None:
    """Landmarks, headings in order, captions, scopes, ids that are there once, labelled regions."""
    page = parse(document())
    ids = [e.attributes["id"] for e in page.elements if "id" in e.attributes]
    assert len(ids) == len(set(ids))
    assert all(not re.search(r"\s", name) for name in ids)
    assert page.all("html")[0].attributes["lang"] == "en"
    assert [len(page.all(tag)) for tag in ("main", "header", "footer", "h1", "title")] == [1] * 5
    levels = [int(e.tag[1]) for e in page.elements if re.fullmatch(r"h\d", e.tag)]
    assert levels == [1] + [2] * 7
    for element in page.elements:
        for name in ("aria-labelledby", "href"):
            to = element.attributes.get(name, "")
            if name == "aria-labelledby" and to:
                page.by_id(to)
            if name == "href" and to.startswith("#"):
                page.by_id(to[1:])
        if element.attributes.get("role") in ("region", "meter"):
            assert "aria-label" in element.attributes or "aria-labelledby" in element.attributes
    for table in page.all("table"):
        assert table.parents[-1] == "div"
    assert len(page.all("caption")) == len(page.all("table"))
    assert {e.attributes.get("scope") for e in page.all("th")} <= {"col", "row", "rowgroup"}
    assert page.elements[0].tag == "html"
    assert next(e for e in page.elements if e.tag == "a").attributes["class"] == "skip"


@pytest.mark.parametrize("document", DOCUMENTS)
def test_nothing_comes_from_elsewhere_and_nothing_runs_but_the_pages_own_script(
    document: Any,
) -> None:
    """The policy names style and script by their hashes; no attribute runs or styles anything."""
    page = parse(document())
    for element in page.elements:
        names = set(element.attributes)
        assert not {n for n in names if n.startswith("on") or n in ("style", "srcset", "action")}
        assert not names & {"src"}, element
        href = element.attributes.get("href", "#")
        assert href.startswith(("#", "?")) or href == "data:,"
    assert len(page.all("script")) == len(page.all("style")) == 1
    policy = headers()["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe" not in policy
    assert "http" not in status_page(document()).replace("http-equiv", "")


def test_markup_in_names_is_text() -> None:
    """Of tables, servers, problems, states: of everything."""
    page = parse(evil())
    shown = EVIL.replace("\x00", "\ufffd").replace("\u202e", "\ufffd")
    assert shown in page.by_id("tables").text
    assert shown in page.by_id("servers").text
    assert shown in page.by_id("tablets").text
    assert not page.all("img")
    assert parse(one_dead(), View(EVIL)).by_id("tablets").text.count(shown) >= 1


def test_the_summary_says_what_is_wrong_and_which_command_helps() -> None:
    """In plain words; the worst first."""
    page = parse(one_dead())
    summary = page.by_id("summary").text
    assert "Working, but not all is well" in summary
    assert "1 tablet server dead: tserver-0, not heard for" in summary
    assert "4 tablets with fewer replicas than wanted: table orders (4 tablets)" in summary
    assert "stelae check" in [e.text for e in page.all("code")]
    assert page.all("title")[0].text == "▲ test · Stelae"
    well = parse(healthy())
    assert "All is well." in well.by_id("summary").text
    assert well.all("title")[0].text == "test · Stelae"
    away = healthy()
    away["backups_not_heard"] = [
        {"id": "backup-7", "node": "b", "retiring": False},
        {"id": "backup-8", "node": "b", "retiring": True},
    ]
    words = "1 known backup not heard since the leader master began: backup-7 on machine b."
    assert words in parse(away).by_id("summary").text
    wrong = parse(busy())
    assert "Something is wrong" in wrong.by_id("summary").text
    assert "1 tablet recovering: table table_0 (1 tablet)" in wrong.by_id("summary").text


def test_findings_of_masters_memory_wishes_and_losses() -> None:
    """Each in its own words; none where all is well."""
    assert findings(healthy()) == []
    status = healthy()
    master = status["servers"][0]
    status["servers"] += [
        {**master, "id": "master-1", "uuid": "m1", "state": "dead", "role": "follower"},
        {**master, "id": "master-2", "uuid": "m2", "role": "follower", "keeps_up": False},
    ]
    tserver = next(s for s in status["servers"] if s["kind"] == "tserver")
    tserver.update(memory_bytes=95, memory_limit_bytes=100, retiring=True)
    other = [s for s in status["servers"] if s["kind"] == "tserver"][1]
    other.update(maintenance=True, state="dead")
    status.update(losses_accepted=2, heard_all=False)
    status["tablets"][0]["problem"] = "no backup has segment 3"
    found = {each.words: (each.mood, each.help) for each in findings(status)}
    assert [mood for mood, _ in found.values()] == sorted(
        (mood for mood, _ in found.values()), key=("bad", "warn", "calm").index
    )
    words = "2 of 3 masters live: without one more of them no table can be changed, and no tablet"
    assert any(each.startswith(words) for each in found)
    tablet = status["tablets"][0]
    problem = f"table {tablet['table']} (1 tablet): no backup has segment 3"
    assert found[problem] == ("warn", f"stelae tablet locate {tablet['id']}")
    assert found["Behind with the masters' log: master-2."][0] == "warn"
    assert found["Over 90% of their memory in use: tserver-0."] == ("warn", "stelae plan")
    assert found["Being retired: tserver-0."] == ("calm", "stelae server list")
    assert found["2 losses of rows accepted by operators, on record."][0] == "calm"
    assert any("in maintenance" in each and found[each][0] == "calm" for each in found)


def test_what_an_operator_stopped_is_calm_and_machines_that_are_away_are_not() -> None:
    """With what becomes of their servers, and nodes that are too few for a spread."""
    status = one_dead()
    (dead,) = {s["id"] for s in status["servers"] if s["state"] != "live"}
    assert [each.mood for each in findings(status) if dead in each.words] == ["warn"]
    status.update(
        stopped=[dead],
        away={
            "since": {"c": 0.0},
            "there": {"c": ["backup-3"]},
            "servers": [{"name": "backup-3", "next": "wait", "why": "its machine may come back"}],
        },
        warnings=["servers are on 1 nodes, too few"],
    )
    found = {each.words: (each.mood, each.help) for each in findings(status)}
    stopped = ("calm", f"stelae server start {dead}")
    assert found[f"Stopped by an operator: {dead}."] == stopped
    assert not any(f"dead: {dead}" in words for words in found)
    assert found["Machine c is away: backup-3."] == ("warn", "stelae check")
    assert found["backup-3 waits: its machine may come back."][0] == "calm"
    assert found["Servers are on 1 nodes, too few."][0] == "warn"


def test_the_grid_shows_where_replicas_are_and_stays_small() -> None:
    """One page of tablets at most, those that are unwell on the first; links lead to the others."""
    page = parse(one_dead())
    grid = page.by_id("tablet-table").text
    assert "leads" in grid
    assert "follows" in grid
    assert "dead" in grid
    assert "safekeepers 1, 2, 3" in grid
    many = parse(busy())
    rows = [e for e in many.all("tr") if "tbody" in e.parents[-1:] and e.attributes.get("id", "")]
    rows = [e for e in rows if e.attributes["id"].startswith("tablet-")]
    assert len(rows) == PAGE_TABLETS
    assert rows[0].text.startswith("table_0 3✕ recovering")
    assert "Tablets 1 to 50 of 500" in many.by_id("tablets").text
    assert many.by_id("to-page-10").attributes["href"] == "?page=10#tablets"
    last = parse(busy(), View(page=99))
    assert "Tablets 451 to 500 of 500" in last.by_id("tablets").text
    assert last.by_id("to-page-10").attributes["aria-current"] == "page"
    assert len(status_page(busy())) < 200_000
    wide = parse(busy(servers=60))
    assert "Servers" in [e.text for e in wide.all("th", scope="col")]


def test_one_tables_tablets_can_be_chosen_and_the_choice_is_kept_by_links() -> None:
    """Also that the page is not to refresh itself."""
    page = parse(busy(), View("table_1", 1, 0))
    assert "Tablets 1 to 50 of 100" in page.by_id("tablets").text
    assert page.by_id("to-page-2").attributes["href"] == "?table=table_1&page=2&refresh=0#tablets"
    assert page.by_id("all-tables").attributes["href"] == "?refresh=0#tablets"
    assert page.by_id("refreshing").attributes["href"] == "?table=table_1"
    assert page.all("html")[0].attributes["data-refresh"] == "0"
    assert not page.all("meta", **{"http-equiv": "refresh"})
    assert "No tablets of table none" in parse(busy(), View("none")).by_id("tablets").text


def test_what_is_under_way_has_a_bar_and_what_is_over_is_told() -> None:
    """Recoveries, copies, migrations, segments made anew, changes of durability, indexes."""
    page = parse(busy())
    meters = {
        e.attributes["aria-label"]: e.attributes["aria-valuenow"]
        for e in page.all("span", role="meter")
    }
    assert meters["Tablets of tserver-x served again"] == "75"
    assert meters["Rows of tserver-x back in memory"] == "62"
    assert meters["Copy of table_0 7 to tserver-3"] == "38"
    assert meters["Segments of table_0 11 copied"] == "70"
    assert meters["Index table_1.dest filled"] == "40"
    assert meters["Rows of table_0 5 copied"] == "20"
    assert "1 recovery under way" in page.by_id("recoveries").text
    assert "backups fenced" in page.by_id("recoveries").text
    assert "step 4: copy logs" in page.by_id("work").text
    assert "tserver-4 → tserver-3" in page.by_id("work").text
    assert "tserver-0 was found dead" in page.by_id("events").text
    assert "None since this master leads" in parse(empty()).by_id("recoveries").text


def test_a_followers_document_says_what_it_does_not_know() -> None:
    """Null is no zero."""
    status = healthy()
    for each in (*status["tables"], *status["tablets"]):
        each.update(rows=None, memory_bytes=None, under_replicated=None, segments=None)
    page = parse(status)
    assert page.by_id("tables").text.count("not known") == 2 * len(status["tables"])
    assert "not known" in page.by_id("figures").text


def test_the_page_says_that_connections_are_encrypted() -> None:
    """Only where the masters say so."""
    words = "Connections between machines are encrypted."
    assert words in status_page({**healthy(), "is_encrypted": True}, View())
    assert words not in status_page({**healthy(), "is_encrypted": False}, View())
    assert words not in status_page(healthy(), View())


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (size(0), "0 B"),
        (size(1536), "1.5 KiB"),
        (size(3 << 40), "3.0 TiB"),
        (duration(0.0123), "12 ms"),
        (duration(75.0), "75 s"),
        (duration(600.0), "10 min"),
        (duration(86400.0 * 3), "3 days"),
    ],
)
def test_numbers_are_rounded_to_what_people_read(shown: str, expected: str) -> None:
    """Sizes and times."""
    assert shown == expected


def test_times_of_another_day_have_its_date() -> None:
    """All are UTC."""
    assert ">00:00:01<" in moment(1.0, 2.0)
    assert ">1970-01-01 00:00:01<" in moment(1.0, 200_000.0)
