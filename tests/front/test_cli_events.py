"""``stelae events`` against a real cluster, in this process."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from stelae.cli import events as cli_events
from stelae.cli.events import Told
from stelae.core.errors import OutcomeUnknown, RetryLater, StelaeError
from stelae.core.schema.durability import replicas
from tests.cluster_fixture import local_cluster
from tests.front.test_cli_operators import database_of, run

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False)])


def status(leader: str, *events: tuple[int, float | None, str]) -> dict[str, Any]:
    found = [{"id": n, "time": at, "text": text, "mood": "calm"} for n, at, text in events]
    return {
        "servers": [{"uuid": leader, "incarnation": 1, "role": "leader"}],
        "events": found[::-1],
    }


def texts(found: Sequence[dict[str, Any]]) -> list[str]:
    return [each["text"] for each in found]


async def test_events_are_shown_by_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """For people, the newest last and without what moves a cursor; and as JSON, chosen by number
    and mood."""
    async with local_cluster(tmp_path / "c", tservers=1) as cluster:
        monkeypatch.setattr(cli_events, "open_cluster", lambda _: database_of(cluster))

        async def command(*arguments: str) -> tuple[int, str]:
            return await asyncio.to_thread(run, capsys, "events", *arguments)

        for name in ("first", "second"):
            await cluster.database.create_table(name, SCHEMA, key="id", durability=replicas(1))
        code, out = await command()
        assert code == 0, out
        assert 0 < out.index("first") < out.index("second")
        code, out = await command("--json", "-n", "1")
        assert code == 0, out
        (last,) = json.loads(out)["events"]
        assert last.keys() == {"id", "time", "text", "mood"}
        assert json.loads((await command("--json", "--bad"))[1]) == {"events": []}
        assert "no such event" in (await command("--bad"))[1]
        assert (await command("-n", "0"))[0] == 2


def test_an_event_is_told_once_whoever_leads() -> None:
    """Masters count by themselves, and apply one entry at slightly different times. What a new
    leader says that nobody told is told, with a text that was told long ago as well."""
    told = Told()
    assert texts(told.new_in(status("a", (1, None, "old"), (2, 10.0, "x")))) == ["old", "x"]
    assert told.new_in(status("a", (1, None, "old"), (2, 10.0, "x"))) == []
    assert texts(told.new_in(status("a", (2, 10.0, "x"), (3, 11.0, "y")))) == ["y"]
    by_other = status("b", (7, None, "old"), (8, 10.1, "x"), (9, 10.9, "y"), (10, 30.0, "x"))
    assert texts(told.new_in(by_other)) == ["x"]
    assert texts(told.new_in(status("b", (10, 30.0, "x"), (11, 31.0, "z")))) == ["z"]
    assert told.new_in(status("b")) == []


def test_events_of_a_leader_that_was_started_anew_are_not_told_again() -> None:
    """It has no times for what was before its start, and the next leader has. What happens after
    the last look is told, with the same text too."""
    told = Told(wall=lambda: 100.0)
    assert texts(told.new_in(status("a", (1, None, "x"), (2, None, "y")))) == ["x", "y"]
    assert told.new_in(status("b", (5, 20.0, "x"), (6, 90.0, "y"))) == []
    told = Told(wall=lambda: 100.0)
    told.new_in(status("a", (1, None, "x")))
    assert texts(told.new_in(status("b", (5, 20.0, "x"), (6, 300.0, "x")))) == ["x"]


def test_following_goes_on_while_no_master_leads(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """That is what people watch for; the reason goes to standard error."""
    monkeypatch.setattr(cli_events, "FOLLOW_S", 0.0)
    failures = (RetryLater("no leader"), OutcomeUnknown("10.0.0.1:1", "status", 5.0))
    documents = (status("a", (1, 1.0, "x")), *failures, status("b", (1, 9.0, "y")))
    answers: Iterator[dict[str, Any] | StelaeError] = iter(documents)

    def look() -> dict[str, Any]:
        found = next(answers)
        if isinstance(found, StelaeError):
            raise found
        return found

    assert texts(list(itertools.islice(cli_events.followed(Told(), look), 2))) == ["x", "y"]
    assert "no leader" in capsys.readouterr().err
