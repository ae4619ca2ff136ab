"""`stelae apply` says first what differs, what is to be done, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from stelae.applying.run import Applied
from stelae.cli.app import app
from stelae.cli.cluster import apply as cli_apply
from stelae.coordinator.apply.plan import Act, Difference, Step
from stelae.core.errors import SpecChanged

SHOWN = Applied(
    (Difference("tservers.count", "3", "4"),),
    (Step(Act.ADD, "tserver", "tserver-4"),),
    generation=7,
)
REFUSED = Applied((), (), ("tservers.count 2 is too few: table 't' with replicas(3) needs 3",))


class Fake:
    """A database that notes whether it was changed."""

    def __init__(self, found: Applied) -> None:
        self.found = found
        self.calls: list[bool] = []

    def __enter__(self) -> Fake:
        return self

    def __exit__(self, *_: object) -> None: ...

    def apply(
        self, spec: Any, *, dry_run: bool = False, if_generation: int | None = None, **_: Any
    ) -> Applied:
        if if_generation not in (None, self.found.generation):
            raise SpecChanged("demo", int(if_generation or 0), self.found.generation, "ada")
        self.calls.append(dry_run)
        return self.found if dry_run else Applied((), self.found.steps, is_done=True)


def run(fake: Fake, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *options: str) -> Any:
    file = tmp_path / "cluster.yaml"
    file.write_text("apiVersion: stelae/v1\nkind: Cluster\n")
    monkeypatch.setattr(cli_apply, "open_cluster", lambda _: fake)
    return CliRunner().invoke(app, ["apply", str(file), *options])


def test_a_dry_run_shows_and_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Fields before and after, and the steps; refusals by exit code 1."""
    fake = Fake(SHOWN)
    result = run(fake, monkeypatch, tmp_path, "--dry-run")
    assert result.exit_code == 3
    assert "tservers.count" in result.output
    assert "tserver-4" in result.output
    assert "generation 7" in result.output
    assert fake.calls == [True]
    result = run(Fake(Applied((), (), is_done=True)), monkeypatch, tmp_path, "--dry-run")
    assert result.exit_code == 0
    result = run(fake, monkeypatch, tmp_path, "--dry-run", "--if-generation", "6")
    assert result.exit_code == 1
    assert isinstance(result.exception, SpecChanged)
    for options in (["--dry-run"], [], ["--json"]):
        refused = Fake(REFUSED)
        result = run(refused, monkeypatch, tmp_path, *options)
        assert result.exit_code == 1
        assert "tservers.count 2 is too few" in result.output
        assert "as the file says" not in result.output
        assert refused.calls == [True]


def test_it_is_carried_out_and_told_as_a_document(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """With `--json` there is one document, of what was done."""
    fake = Fake(SHOWN)
    result = run(fake, monkeypatch, tmp_path, "--json")
    assert fake.calls == [True, False]
    document = json.loads(result.stdout)
    assert document["done"]
    assert document["steps"][0] == {
        "act": "add", "kind": "tserver", "name": "tserver-4", "why": "",
    }  # fmt: skip
