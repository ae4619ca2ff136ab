"""Publishing to a Grafana: complete, repeatable, and clear where it is refused."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from stelae.cli.app import app
from stelae.core.errors import (
    InvalidArgument,
    RetryLater,
    StelaeError,
    Unauthorized,
    Unavailable,
)
from stelae.dashboards.alerts import ALERTS
from stelae.dashboards.boards import BOARDS
from stelae.dashboards.grafana import GrafanaHttp
from stelae.dashboards.publisher import FOLDER_UID, SOURCE_UID, publish
from tests.grafana_double import TOKEN, Answer, GrafanaDouble

PROMETHEUS = "http://prometheus:9090"
OTHER = {"uid": "prom", "name": "P", "type": "prometheus", "access": "proxy", "url": PROMETHEUS}


@pytest.fixture
def grafana() -> Iterator[GrafanaDouble]:
    double = GrafanaDouble()
    yield double
    double.close()


def adapter(double: GrafanaDouble, token: str = TOKEN) -> GrafanaHttp:
    return GrafanaHttp(double.url, token, timeout_s=5.0)


def test_everything_is_there_after_one_run_and_the_same_after_another(
    grafana: GrafanaDouble,
) -> None:
    """Folder, data source, six dashboards and the rules; again, only the rules are written, as
    they were."""
    first = publish(adapter(grafana), prometheus_url=PROMETHEUS)
    assert set(grafana.dashboards) == {board.uid for board in BOARDS}
    assert {d["meta"]["folderUid"] for d in grafana.dashboards.values()} == {FOLDER_UID}
    assert set(grafana.folders) == {FOLDER_UID}
    assert set(grafana.sources) == {SOURCE_UID}
    (group,) = grafana.rules.values()
    assert [rule["uid"] for rule in group["rules"]] == [alert.uid for alert in ALERTS]
    assert len(first.created) == len(BOARDS) + 2
    before, grafana.writes = grafana.state(), []
    second = publish(adapter(grafana), prometheus_url=PROMETHEUS)
    assert grafana.state() == before
    assert (second.created, second.updated) == ([], [])
    assert len(second.unchanged) == len(BOARDS) + 2
    assert [write.split()[0] for write in grafana.writes] == ["PUT"]


def test_a_run_that_was_cut_short_is_given_again(grafana: GrafanaDouble) -> None:
    """What it had done stands, and the rest is done."""
    calls = []

    def fail_late(method: str, route: str) -> Answer | None:
        calls.append(route)
        return (503, {"message": "shutting down"}) if len(calls) > 8 else None

    grafana.on_call = fail_late
    with pytest.raises(Unavailable, match="shutting down"):
        publish(adapter(grafana), prometheus_url=PROMETHEUS)
    assert 0 < len(grafana.dashboards) < len(BOARDS)
    grafana.on_call = lambda method, route: None
    done = publish(adapter(grafana), prometheus_url=PROMETHEUS)
    assert set(grafana.dashboards) == {board.uid for board in BOARDS}
    assert done.unchanged
    assert done.created


def test_changes_by_hand_are_overwritten_and_counted_as_updates(grafana: GrafanaDouble) -> None:
    """The version goes on, so Grafana keeps what was there before."""
    publish(adapter(grafana), prometheus_url=PROMETHEUS)
    kept = grafana.dashboards[BOARDS[0].uid]
    kept["dashboard"].update(title="Mine", version=7)
    grafana.sources[SOURCE_UID]["url"] = "http://elsewhere:9090"
    done = publish(adapter(grafana), prometheus_url=PROMETHEUS)
    saved = grafana.dashboards[BOARDS[0].uid]["dashboard"]
    assert (saved["title"], saved["version"]) == (BOARDS[0].title, 8)
    assert grafana.sources[SOURCE_UID]["url"] == PROMETHEUS
    assert len(done.updated) == 2


def test_who_saves_in_between_is_not_overwritten(grafana: GrafanaDouble) -> None:
    """Grafana answers 412 for the older version, and publishing says so."""
    publish(adapter(grafana), prometheus_url=PROMETHEUS)
    board = grafana.dashboards[BOARDS[0].uid]["dashboard"]
    board["title"] = "Mine"

    def save_before(method: str, route: str) -> Answer | None:
        if method == "POST" and route == "/dashboards/db":
            board["version"] += 1
        return None

    grafana.on_call = save_before
    with pytest.raises(RetryLater, match=r"changed by somebody else.*publish again"):
        publish(adapter(grafana), prometheus_url=PROMETHEUS)
    assert board["title"] == "Mine"


def test_the_data_source_is_named_or_the_only_one(grafana: GrafanaDouble) -> None:
    """Of none or several, the error names those that there are."""
    with pytest.raises(InvalidArgument, match=r"Grafana has none.*--prometheus"):
        publish(adapter(grafana))
    grafana.sources["prom"] = {**OTHER, "id": 1, "version": 1}
    assert publish(adapter(grafana)).source == "prom"
    grafana.sources["prom-2"] = {**OTHER, "uid": "prom-2", "name": "Q", "id": 2, "version": 1}
    with pytest.raises(InvalidArgument, match=r"prom \(P\), prom-2 \(Q\)"):
        publish(adapter(grafana))
    assert publish(adapter(grafana), source_uid="prom-2").source == "prom-2"
    with pytest.raises(InvalidArgument, match="no data source 'loki'"):
        publish(adapter(grafana), source_uid="loki")
    with pytest.raises(InvalidArgument, match="either"):
        publish(adapter(grafana), source_uid="prom", prometheus_url=PROMETHEUS)
    (group,) = grafana.rules.values()
    assert {rule["data"][0]["datasourceUid"] for rule in group["rules"]} == {"prom-2"}


def test_a_wrong_token_is_told_and_changes_nothing(grafana: GrafanaDouble) -> None:
    """Health needs none, so the token is found wrong at the first call after it."""
    with pytest.raises(Unauthorized, match="does not know the token"):
        publish(adapter(grafana, "wrong"), prometheus_url=PROMETHEUS)
    assert not grafana.writes


@pytest.mark.parametrize(
    ("answer", "kind", "text"),
    [
        ((403, {"message": "Permissions needed: folders:create"}), Unauthorized, "role Editor"),
        ((409, {"message": "name exists"}), RetryLater, "publish again"),
        ((400, {"message": "bad request data"}), InvalidArgument, "refuses folder"),
        ((404, {"message": "Not found"}), InvalidArgument, "404"),
        ((500, {"message": "database is locked"}), Unavailable, "database is locked"),
        ((502, "<html>a proxy's message</html>"), Unavailable, "none of a Grafana"),
        ((200, "<html>log in</html>"), Unavailable, "none of a Grafana"),
        ((302, "http://127.0.0.1:1/login"), Unavailable, "sends callers elsewhere"),
    ],
)
def test_every_refusal_is_an_error_with_a_way_out(
    grafana: GrafanaDouble, answer: Answer, kind: type[StelaeError], text: str
) -> None:
    """Whoever refuses: Grafana, its database, or what stands before it."""
    grafana.on_call = lambda method, route: answer if method == "POST" else None
    with pytest.raises(kind, match=text):
        publish(adapter(grafana), prometheus_url=PROMETHEUS)


def test_a_grafana_that_is_down_or_silent_is_told_with_its_url(grafana: GrafanaDouble) -> None:
    """Nobody listens, nobody answers, or it is something else that answers."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(Unavailable, match=r"no answer.*in time"):
            publish(GrafanaHttp(url, TOKEN, timeout_s=0.2))
    with pytest.raises(Unavailable, match="does Grafana run"):
        publish(GrafanaHttp(url, TOKEN, timeout_s=1.0))
    grafana.on_call = lambda method, route: (200, {"status": "ok"})
    with pytest.raises(Unavailable, match="no Grafana"):
        publish(adapter(grafana))


def test_a_path_before_the_api_is_kept() -> None:
    """A Grafana behind a proxy, under a path of its own."""
    double = GrafanaDouble("/tools/grafana")
    try:
        for url in (double.url, f"{double.url}/"):
            publish(GrafanaHttp(url, TOKEN, timeout_s=5.0), prometheus_url=PROMETHEUS)
        assert len(double.dashboards) == len(BOARDS)
        root = double.url.removesuffix("/tools/grafana")
        with pytest.raises(StelaeError, match="health"):
            publish(GrafanaHttp(root, TOKEN, timeout_s=5.0), prometheus_url=PROMETHEUS)
    finally:
        double.close()


@pytest.mark.parametrize(
    "url", ["", "ftp://host", "http://", "http://user:word@host", "http://h?a"]
)
def test_what_is_no_url_is_refused_before_a_call(url: str) -> None:
    """And so is no token."""
    with pytest.raises(InvalidArgument):
        GrafanaHttp(url, TOKEN)
    with pytest.raises(InvalidArgument, match="token"):
        GrafanaHttp("http://host", " ")


def test_the_command_publishes_and_says_what_it_did(
    grafana: GrafanaDouble, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """By options or the environment; the token is printed nowhere; or it writes files."""
    monkeypatch.setenv("GRAFANA_TOKEN", TOKEN)
    arguments = ["grafana", "publish", "--url", grafana.url, "--prometheus", PROMETHEUS]
    shown = CliRunner().invoke(app, arguments)
    assert shown.exit_code == 0, shown.output
    assert "created" in shown.output
    assert f"{len(ALERTS)} alert rules" in shown.output
    again = CliRunner().invoke(app, [*arguments, "--json"])
    assert json.loads(again.output)["created"] == []
    assert TOKEN not in shown.output + again.output
    written = CliRunner().invoke(app, ["grafana", "export", str(tmp_path / "made")])
    assert written.exit_code == 0, written.output
    files = sorted((tmp_path / "made").iterdir())
    assert [file.stem for file in files] == sorted(board.uid for board in BOARDS)
    assert json.loads(files[0].read_text())["uid"] == files[0].stem
