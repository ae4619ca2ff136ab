"""The command line: what it says, how it fails, and a cluster's life by it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pytest

from stelae import cli, cli_values
from stelae.cli_output import partition_words, show_locations, show_status
from stelae.core.durability import replicas, segments, wal
from stelae.core.errors import ColumnNotFound, InvalidArgument, StelaeError
from stelae.core.schema import TableSchema
from tests.unit.client.scripted import as_group, locations

WIDE = {"COLUMNS": "200", "TERM": "dumb", "NO_COLOR": "1"}
BAD_SPEC = """apiVersion: stelae/v1
kind: Cluster
cluster: X Y
masters: {count: 2}
tserver: {count: 3}
"""
SPEC = """apiVersion: stelae/v1
kind: Cluster
cluster: small
ray: {address: local, num_cpus: 2}
data_dir: data
masters: {count: 1}
tservers: {count: 2, memory: 128MiB}
backups: {count: 2}
segment_size: 1MiB
serve: {port: 0}
spark: null
"""


def stelae(
    *arguments: str, cwd: Path | None = None, env: dict[str, str] | None = None, timeout: float = 60
) -> subprocess.CompletedProcess[str]:
    """Run the command line as a user does."""
    return subprocess.run(
        [sys.executable, "-m", "stelae", *arguments],
        cwd=cwd,
        env={**os.environ, **WIDE, **(env or {})},
        capture_output=True,
        text=True,
        timeout=timeout,
    )


# ---- without a cluster ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "command",
    [
        "up",
        "down",
        "status",
        "check",
        "demo",
        "table list",
        "tablet move",
        "server list",
        "server retire",
        "server maintenance",
        "rebalance on",
        "rebalance off",
        "rebalance status",
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
        "import sys\nfrom stelae.cli import main\ntry: main(['--help'])\nexcept SystemExit: pass\n"
        "print(sorted({'ray', 'pyarrow', 'pandas', 'numpy', 'matplotlib'} & set(sys.modules)))"
    )
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert answer.stdout.splitlines()[-1] == "[]"


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


WELL: dict[str, Any] = {
    "servers": [
        {"id": "master-1", "state": "live", "role": "leader"},
        {"id": "tserver-1", "state": "dead"},
        {"id": "tserver-1", "state": "live"},
    ],
    "tablets": [
        {"number": 0, "table": "t", "state": "running", "problem": "", "under_replicated": 0}
    ],
}


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda s: None, ""),
        (lambda s: s["servers"].pop(), "tserver-1 is dead"),
        (lambda s: s["servers"][0].update(role="follower"), "no master leads"),
        (lambda s: s["servers"][0].update(state="dead"), "master-1 is dead"),
        (
            lambda s: s["tablets"][0].update(state="recovering", problem="no live backup holds 7"),
            "tablet 0 of 't' is recovering: no live backup holds 7",
        ),
        (lambda s: s["tablets"][0].update(under_replicated=2), "2 segments with lost replicas"),
        (
            lambda s: s["tablets"][0].update(under_replicated=1, replicas=[]),
            "tablet 0 of 't' lacks 1 of its replicas",
        ),
    ],
)
def test_status_says_what_is_not_well(change: Callable[[Any], Any], problem: str) -> None:
    """Dead servers (not those that came back), tablets that do not serve, lost replicas."""
    status = json.loads(json.dumps(WELL))
    change(status)
    found = "; ".join(cli.problems_of(status))
    assert problem in found
    assert bool(problem) == bool(found)


def test_locations_show_leader_and_other_replicas(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a tablet with replicas all of them; a term only where the masters give it."""
    for name, value in WIDE.items():
        monkeypatch.setenv(name, value)
    owned = locations(TableSchema.of(pa.schema([("id", pa.int64())]), ["id"])).tablets
    show_locations(list(owned), False)
    alone = capsys.readouterr().out
    assert "replicas" not in alone
    assert "t:1" in alone
    show_locations([as_group(owned[0])], False)
    shown = capsys.readouterr().out
    assert "t:2, t:3" in shown
    assert "other replicas" in shown
    show_locations([as_group(owned[0])], True)
    (document,) = json.loads(capsys.readouterr().out)["tablets"]
    assert [replica["is_leader"] for replica in document["replicas"]] == [True, False, False]


def test_status_shows_how_far_tablet_copies_are(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """From where to where, how many bytes of how many, and why one does not go on."""
    for name, value in WIDE.items():
        monkeypatch.setenv(name, value)
    copy = {
        "tablet": "tablet-7",
        "table": "orders",
        "source": "tserver-1",
        "server": "tserver-4",
        "state": "copying",
        "problem": "",
        "copied_bytes": 30 << 20,
        "bytes": 80 << 20,
    }
    held = {**copy, "tablet": "tablet-8", "state": "throttled", "problem": "two others come first"}
    document: dict[str, Any] = {
        "cluster": "demo",
        "servers": [],
        "tables": [],
        "recoveries": [],
        "copies": [],
    }
    show_status(document, [])
    assert "copies" not in capsys.readouterr().out
    show_status({**document, "copies": [copy, {**held, "copied_bytes": 0, "bytes": 0}]}, [])
    lines = capsys.readouterr().out.splitlines()
    (line,) = [each for each in lines if "tablet-7" in each]
    for text in ("orders", "tserver-1", "tserver-4", "copying", "31.5 MB of 83.9 MB"):
        assert text in line
    (line,) = [each for each in lines if "tablet-8" in each]
    assert "throttled: two others come first" in line
    assert " of " not in line


def test_how_a_table_is_cut_is_told_in_words() -> None:
    """As people say it; programs get the document."""
    by_hash = {"columns": ["id", "day"], "buckets": 4}
    by_range = {"columns": ["day"], "splits": [[5], [9]]}
    assert partition_words({"hash": None, "range": None}) == "one tablet"
    assert partition_words({"hash": by_hash, "range": None}) == "hash of id, day into 4"
    assert partition_words({"hash": by_hash, "range": by_range}) == (
        "hash of id, day into 4; ranges of day, cut at 5, 9"
    )


# ---- a cluster ------------------------------------------------------------------------------


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short folder with a cluster.yaml; whatever runs in it is ended."""
    made = Path(tempfile.mkdtemp(prefix="st-", dir="/tmp"))
    (made / "cluster.yaml").write_text(SPEC)
    yield made
    stelae("down", cwd=made, env=_env(made))
    shutil.rmtree(made, ignore_errors=True)


def _env(folder: Path) -> dict[str, str]:
    ray = {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}
    return {**ray, "RAY_TMPDIR": str(folder / "r")}


def _is_running(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.ray
def test_a_cluster_by_the_command_line_survives_the_death_of_everything(folder: Path) -> None:
    """up, a second up, status, tables; SIGKILL of all its processes at once; up again: the rows
    are there; down: no process is left."""

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return stelae(*arguments, cwd=folder, env=_env(folder), timeout=120)

    first = run("up", "--json")
    assert first.returncode == 0, first.stderr
    up = json.loads(first.stdout)
    assert up["data_dir"] == str(folder / "data")
    token = Path(up["token_file"])
    assert token.stat().st_mode & 0o777 == 0o600

    second = run("up")
    assert second.returncode == 1
    assert f"in use by process {up['pid']}" in second.stderr

    _write_and_read(folder, up["http"], token.read_text().strip())
    listed = json.loads(run("table", "list", "--json").stdout)["tables"]
    assert [(table["name"], table["key"]) for table in listed] == [("t", ["id"])]
    described = json.loads(run("table", "describe", "t", "--json").stdout)
    assert [column["type"] for column in described["columns"]] == ["int64", "string"]
    assert described["partition"]["hash"] == {"type": "hash", "columns": ["id"], "buckets": 2}
    assert run("table", "describe", "nowhere").returncode == 1
    _alter(run)
    status = run("status")
    assert status.returncode == 0, status.stdout
    assert "all is well" in status.stdout
    _operate(run)

    keeper = psutil.Process(up["pid"])
    everything = [keeper, *keeper.children(recursive=True)]
    for process in everything:
        process.kill()
    _, left = psutil.wait_procs(everything, 20)
    assert not left
    assert run("status").returncode == 1

    again = json.loads(run("up", "--json").stdout)
    assert _count(folder) == 1000
    keeper = psutil.Process(again["pid"])
    everything = [keeper, *keeper.children(recursive=True)]
    down = run("down")
    assert (down.returncode, down.stdout.strip()) == (0, "down"), down.stderr
    assert not [process for process in everything if _is_running(process)]
    assert run("status").returncode == 1


def _alter(run: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    """Columns and name by the command line, there and back."""
    done = run("table", "alter", "t", "--add", "n:int8 not null", "--default", "n=3", "--json")
    assert done.returncode == 0, done.stderr
    names = [column["name"] for column in json.loads(done.stdout)["columns"]]
    assert names == ["id", "name", "n"]
    done = run("table", "alter", "t", "--drop", "n", "--rename", "name=title")
    assert (done.returncode, done.stdout) == (0, "t has the columns id int64, title string\n")
    assert run("table", "alter", "t", "--drop", "id").returncode == 2
    assert run("table", "alter", "t", "--rename", "title=name", "--no-wait").returncode == 0
    assert run("table", "rename", "t", "u").stdout == "t is now u\n"
    assert json.loads(run("table", "rename", "u", "t", "--json").stdout) == {"name": "t"}


def _operate(run: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    """The check finds nothing; servers are listed and marked; rebalancing is switched."""
    checked = run("check", "--wait", "10", "--checksums", "--json")
    document = json.loads(checked.stdout)
    assert checked.returncode == 0, document["findings"]
    assert [master["state"] for master in document["masters"]] == ["voter"]
    assert [(t["name"], t["tablets"], t["healthy"]) for t in document["tables"]] == [("t", 2, 2)]
    assert run("check", "--table", "nowhere").returncode == 1
    marked = run("server", "maintenance", "tserver-1", "on", "--json")
    assert json.loads(marked.stdout)["maintenance"] is True
    listed = json.loads(run("server", "list", "--json").stdout)["servers"]
    assert [(s["name"], s["maintenance"]) for s in listed] == [
        ("tserver-1", True),
        ("tserver-2", False),
    ]
    assert run("check").returncode == 0, "maintenance is meant"
    assert run("server", "maintenance", "tserver-1", "off").returncode == 0
    retired = run("server", "retire", "tserver-2")
    assert retired.returncode == 0
    assert "tserver-2 has no" in retired.stdout or "tserver-2 has nothing" in retired.stdout
    assert "not to be retired" in run("server", "retire", "tserver-2", "--cancel").stdout
    assert run("server", "retire", "nobody").returncode == 2
    assert json.loads(run("rebalance", "on", "--after", "9", "--json").stdout)["after_s"] == 9.0
    assert run("rebalance", "off").returncode == 0
    assert "off" in run("rebalance", "status").stdout


def _write_and_read(folder: Path, url: str, token: str) -> None:
    """Rows in by a client of the data_dir, out over HTTP."""
    import httpx
    import pyarrow as pa

    from stelae import connect, hash_partition

    schema = pa.schema([pa.field("id", pa.int64(), False), ("name", pa.string())])
    with connect(folder / "data") as db:
        table = db.create_table("t", schema, key="id", partition=hash_partition("id", 2))
        table.upsert(pa.table({"id": range(1000), "name": ["x"] * 1000}, schema=schema))
    headers = {"Authorization": f"Bearer {token}"}
    assert httpx.get(f"{url}/v1/tables/t/rows/7", headers=headers).json() == {"id": 7, "name": "x"}
    assert httpx.get(f"{url}/v1/tables/t/rows/7").status_code == 401


def _count(folder: Path) -> int:
    from stelae import connect

    with connect(folder / "data") as db:
        return len(db.table("t"))


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
    read = cli_values.durability_of
    assert read("wal(3)") == wal(3)
    assert read("wal(1, segments=('disk',))") == wal(1, ("disk",))
    assert read("segments('disk', 'ram')") == segments("disk", "ram")
    assert read("replicas(5)") == replicas(5)
    for wrong in ("wal", "wal(", "wal(3, x=1)", "print(3)", "replicas(exit())", "replicas(4)", ""):
        with pytest.raises(InvalidArgument, match=r"odd number|--durability"):
            read(wrong)


def test_every_error_family_has_an_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    """A wrong argument is misuse; every other error of Stelae's is a failure."""
    from stelae.core.errors import InvalidArgument, NoQuorum

    cases: list[tuple[StelaeError, int]] = [(InvalidArgument("x"), 2), (NoQuorum("a"), 1)]
    for error, code in cases:
        assert cli._report_error(error, as_json=False) == code
        assert str(error) in capsys.readouterr().err
