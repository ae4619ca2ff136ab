"""The command line: how it reads what people type, what it says, how it fails.

What it tells of a cluster: `tests.front.test_cli_status`; a cluster's life: `test_cli_life`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from stelae.cli import app as cli
from stelae.cli import values as cli_values
from stelae.core.errors import ColumnNotFound, InvalidArgument, StelaeError
from stelae.core.schema.durability import parse_durability, replicas, segments, wal
from tests.front.cli_process import stelae

BAD_SPEC = """apiVersion: stelae/v1
kind: Cluster
cluster: X Y
masters: {count: 2}
tserver: {count: 3}
"""


@pytest.mark.parametrize(
    "command",
    [
        "up",
        "attach",
        "bench",
        "version",
        "grafana export",
        "down",
        "status",
        "check",
        "demo",
        "logs",
        "table list",
        "table create",
        "table drop",
        "table get",
        "table put",
        "table delete-rows",
        "table scan",
        "table count",
        "table import",
        "table export",
        "tablet move",
        "server list",
        "server retire",
        "server replace",
        "server maintenance",
        "rebalance on",
        "rebalance off",
        "rebalance status",
        "grafana publish",
        "grafana metrics",
        "safekeeper list",
        "safekeeper status",
        "safekeeper set-status",
        "safekeeper migrate",
        "safekeeper abort",
        "safekeeper scrub",
        "tablet safekeepers",
    ],
)
def test_help_teaches_with_examples(command: str) -> None:
    """Each command's help shows how it is called, and that it can answer in JSON."""
    answer = stelae(*command.split(), "--help")
    assert answer.returncode == 0
    assert f"\n stelae {command}" in answer.stdout
    assert "--json" in answer.stdout


def test_help_needs_no_slow_imports() -> None:
    """The front page of the help is there at once: Ray, Arrow and pandas are not loaded for it."""
    script = (
        "import sys\nfrom stelae.cli.app import main\n"
        "try: main(['--help'])\nexcept SystemExit: pass\n"
        "print(sorted({'ray', 'pyarrow', 'pandas', 'numpy', 'matplotlib'} & set(sys.modules)))"
    )
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert answer.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_completes_commands(shell: str) -> None:
    """By the script that `--show-completion` prints."""
    env = {**os.environ, "_STELAE_COMPLETE": f"complete_{shell}"}
    env |= {"COMP_WORDS": "stelae ta", "COMP_CWORD": "1", "_TYPER_COMPLETE_ARGS": "stelae ta"}
    env |= {"_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    script = "from stelae.cli.app import main; main([])"
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=env)
    assert "table" in answer.stdout
    assert "tablet" in answer.stdout
    assert "status" not in answer.stdout


def test_a_bad_file_is_told_by_line_and_field(tmp_path: Path) -> None:
    """`up` with a wrong cluster.yaml lists all that is wrong, exits 2, and makes nothing."""
    (tmp_path / "cluster.yaml").write_text(BAD_SPEC)
    answer = stelae("up", cwd=tmp_path)
    assert answer.returncode == 2
    for part in ("line 3, cluster", "line 4, masters.count", "line 5, tserver", "'tservers'"):
        assert part in answer.stderr
    assert "Traceback" not in answer.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["cluster.yaml"]


def test_errors_are_documents_with_json(tmp_path: Path) -> None:
    """With --json a failure is one JSON document on standard output, with the error's name."""
    answer = stelae("status", "--json", cwd=tmp_path)
    assert answer.returncode == 1
    assert json.loads(answer.stdout)["error"]["type"] == "Unavailable"
    assert "stelae up" in answer.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"],
        ["up", "--nonsense"],
        ["demo", "--engine", "steam"],
        ["table"],
        ["server", "maintenance", "tserver-1", "maybe"],
        ["rebalance", "on", "--after", "0"],
        ["safekeeper", "set-status", "1", "gone"],
        ["safekeeper", "migrate", "--table", "t"],
        ["safekeeper", "migrate", "--to", "1,2,3"],
        ["safekeeper", "migrate", "--table", "t", "--tablet", "x", "--to", "1,2,3"],
        ["safekeeper", "migrate", "--table", "t", "--to", "1,2,3", "--limit", "1"],
        ["safekeeper", "migrate", "--from", "1", "--to", "2,3"],
        ["safekeeper", "migrate", "--from", "1", "--to", "2", "--limit", "0"],
        ["tablet", "move", "t", "tserver-1"],
        ["tablet", "move", "t", "tserver-1", "tserver-2", "--cancel"],
    ],
)
def test_wrong_use_exits_with_2(arguments: list[str]) -> None:
    """What the parser refuses is exit code 2, like a wrong file."""
    assert stelae(*arguments).returncode == 2


def test_a_terminal_without_all_characters_shows_a_question_mark() -> None:
    """What cannot be written in its encoding is no crash: the rest is there."""
    ascii_only = {"PYTHONIOENCODING": "ascii", "LC_ALL": "C", "PYTHONUTF8": "0"}
    for arguments in (("up", "nowhere/\u00e4\u2026.yaml"), ("status", "nowhere/\u00e4\u2026")):
        found = stelae(*arguments, env=ascii_only)
        assert found.returncode != 0
        assert "nowhere/" in found.stderr
        assert "UnicodeEncodeError" not in found.stderr


def test_down_of_nothing_is_fine(tmp_path: Path) -> None:
    """`down` wants that nothing runs; if nothing does, that is well."""
    answer = stelae("down", "--json", cwd=tmp_path)
    assert answer.returncode == 0
    assert json.loads(answer.stdout)["was_up"] is False


@pytest.mark.parametrize(("debug", "has_traceback"), [([], False), (["--debug"], True)])
def test_a_bug_shows_a_traceback_only_on_demand(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    debug: list[str],
    has_traceback: bool,
) -> None:
    """Errors that are not Stelae's own are told in a line; --debug lets them through."""

    def broken(*_: object) -> dict[str, Any]:
        raise KeyError("servers")

    monkeypatch.setattr(cli, "read_status", broken)
    with pytest.raises(KeyError if has_traceback else SystemExit) as caught:
        cli.main(["status", *debug])
    if not has_traceback:
        assert isinstance(caught.value, SystemExit)
        assert caught.value.code == 1
        assert "internal error: KeyError" in capsys.readouterr().err


def test_interrupted_commands_end_quietly(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ctrl-C is exit code 130, as shells have it, and no traceback."""

    def interrupted(*_: object) -> dict[str, Any]:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "read_status", interrupted)
    with pytest.raises(SystemExit) as caught:
        cli.main(["status"])
    assert caught.value.code == 130
    assert "Traceback" not in capsys.readouterr().err


def test_columns_and_defaults_are_read_as_people_write_them() -> None:
    """Types by name, values as JSON or text; what is neither is refused, naming the option."""
    fields = cli_values.fields_of(["n:int8 not null", "at:timestamp[us, tz=UTC]", "note:string"])
    assert [(f.name, f.nullable) for f in fields] == [("n", False), ("at", True), ("note", True)]
    assert fields[1].type == pa.timestamp("us", "UTC")
    renames = cli_values.pairs_of(["a=b=c"], "--rename")
    assert renames == {"a": "b=c"}
    texts = {"n": "3", "note": "12", "at": '"2020-01-01T00:00:00Z"', "b": "plain text", "c": "null"}
    schema = pa.schema([("x", pa.string()), ("c", pa.int64())])
    values = cli_values.defaults_of(texts, schema, fields, {"x": "b"})
    assert (values["n"], values["note"], values["b"], values["c"]) == (3, "12", "plain text", None)
    for wrong in (["n"], [":int8"], ["n:int65"]):
        with pytest.raises(InvalidArgument, match=r"int|--add"):
            cli_values.fields_of(wrong)
    for pairs in (["n"], ["=1"], ["n=1", "n=2"]):
        with pytest.raises(InvalidArgument, match="--default"):
            cli_values.pairs_of(pairs, "--default")
    with pytest.raises(ColumnNotFound):
        cli_values.defaults_of({"zz": "1"}, schema, fields, {})
    with pytest.raises(InvalidArgument, match="default of column 'n'"):
        cli_values.defaults_of({"n": "many"}, schema, fields, {})


def test_a_durability_is_read_as_it_is_written_in_python() -> None:
    """Nothing else is, and nothing is carried out."""
    read = parse_durability
    assert read("wal(3)") == wal(3)
    assert read("wal(1, segments=('disk',))") == wal(1, ("disk",))
    assert read("segments('disk', 'ram')") == segments("disk", "ram")
    assert read("replicas(5)") == replicas(5)
    for wrong in ("wal", "wal(", "wal(3, x=1)", "print(3)", "replicas(exit())", "replicas(4)", ""):
        with pytest.raises(InvalidArgument, match=r"odd number|durability"):
            read(wrong)


def test_every_error_family_has_an_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    """A wrong argument is misuse; every other error of Stelae's is a failure."""
    from stelae.core.errors import InvalidArgument, NoQuorum

    cases: list[tuple[StelaeError, int]] = [(InvalidArgument("x"), 2), (NoQuorum("a"), 1)]
    for error, code in cases:
        assert cli._report_error(error, as_json=False) == code
        assert str(error) in capsys.readouterr().err
