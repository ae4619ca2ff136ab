"""The documentation: its site is built without a warning, and what its pages say is so."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import stelae
from stelae.dashboards.boards import BOARDS
from stelae.recovery.java import python_environment, spark_options
from stelae.recovery.spark_session import check_spark, stop_session
from tests.front.pages import DOCS, README, SHOWN, Block, Reader, blocks_of
from tests.grafana_double import TOKEN, GrafanaDouble
from tests.java_compiler import needed_jar
from tests.served import served

FOLLOWED = [
    "tutorial.md",
    "how-to/notebooks.md",
    "how-to/http.md",
    "how-to/arrow.md",
    "how-to/ray-data-and-spark.md",
    "how-to/operate.md",
    "how-to/back-up.md",
    "operations.md",
    "monitoring.md",
]
"""In the order of a reader; the first one stands the cluster up."""
OTHERS = {
    "how-to/feast.md",  # run by tests/feast, as Feast has an environment of its own
    "how-to/command-line.md",  # tests/cluster/test_command_line.py follows it
    "how-to/processes.md",  # tests/front/test_forks.py and test_pickles.py fork and spawn
    "safekeepers.md",
    "architecture.md",
    "decisions.md",
    "reference/http.md",
    "guide.md",  # followed after README.md, below
}
"""What they say has tests of its own."""
GUIDE = DOCS / "guide.md"
"""Goes on from README.md."""
LEFT = {
    "pip install": "tests/cluster/test_examples.py installs the wheel, and `make test-matrix`",
    "stelae demo": "a Ray and a cluster of its own: it is run by tests/front/test_demo.py",
}
"""Commands of README.md that are not run there, and why."""


def test_every_block_of_code_is_run() -> None:
    """A page with one is among those that are followed, and it has a language that can be."""
    for page in sorted(DOCS.rglob("*.md")):
        name = str(page.relative_to(DOCS))
        languages = {block.language for block in blocks_of(page)} - set(SHOWN)
        if name in FOLLOWED:
            assert languages <= {"python", "bash", "yaml", "json"}, name
        elif name not in OTHERS:
            assert not languages, f"{name}: {languages}"
    assert {block.language for block in blocks_of(README)} == {"python", "bash"}
    assert {block.language for block in blocks_of(GUIDE)} == {"python", "bash", "yaml"}
    assert all(f"\n{command}" in README.read_text() for command in LEFT)


def test_what_the_guide_shows_of_a_feature_store_is_what_the_example_has() -> None:
    """The example is run by tests/feast."""
    (shown,) = [block.text for block in blocks_of(GUIDE) if block.language == "yaml"]
    example = README.parent / "examples" / "feast" / "feature_store.yaml"
    known = yaml.safe_load(example.read_text())["online_store"]
    assert yaml.safe_load(shown)["online_store"].items() <= known.items()


def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    """All links lead somewhere, every name of the reference is there, and so are the commands."""
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")],
        cwd=DOCS.parent,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=300.0,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    reference = tmp_path / "site" / "reference"
    assert "stelae server retire" in (reference / "cli.html").read_text()
    assert "stelae backup prune" in (reference / "cli.html").read_text()
    assert "tservers.quarantine_keep" in (reference / "cluster-yaml.html").read_text()
    python = (reference / "python.html").read_text()
    for name in ("get_many", "create_index", "export_table", "launch", "prune_backups"):
        assert name in python


NEED_RAY_OR_SPARK = ("spark", "ray.data", "stelae.data")
"""Words of Python blocks that are run with a real Ray only, below."""


def test_the_blocks_on_tables_of_readme_and_guide_are_one_session(tmp_path: Path) -> None:
    """In their order, each goes on from those before: a name or a column that a block needs and
    none has made is an error here. Servers are real, without Ray."""

    def is_followed(block: Block) -> bool:
        needs = any(word in block.text for word in NEED_RAY_OR_SPARK)
        return block.language == "python" and not needs

    folder = tmp_path / "bucket"
    elsewhere = {'stelae.launch("cluster.yaml")': "the_database", "s3://bucket": str(folder)}
    with served(tmp_path / "cluster", tservers=3) as here, here.database() as database:
        reader = Reader(tmp_path, elsewhere)
        reader.names["the_database"] = database
        assert reader.follow(README, is_followed) == 1
        assert reader.follow(GUIDE, is_followed) == 4
        for name in ("flights", "flights_2", "flights_before"):
            rows = database[name].scan().sort_by("id").to_pylist()
            assert [(row["id"], row["dest"], row["seats"]) for row in rows] == [
                (41, "BOS", 180),
                (42, "LAX", 180),
                (43, "LAX", 180),
            ]


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a short path, as Ray's sockets want it."""
    made = Path(tempfile.mkdtemp(prefix="st-", dir="/tmp"))
    for name, value in {
        "RAY_AUTH_MODE": "disabled",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_TMPDIR": str(made / "r"),
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(made)
    yield made
    shutil.rmtree(made, ignore_errors=True)


@contextlib.contextmanager
def own_session(address: str) -> Iterator[Any]:
    """A Spark of this process, which knows of the cluster what `stelae.spark.session` tells it."""
    check_spark()
    os.environ.update(python_environment())
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").appName("readme")
    options = {
        **spark_options(),
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.pyspark.python": sys.executable,
        "spark.python.daemon.module": stelae.spark.DAEMON_MODULE,
        "spark.jars": needed_jar(),
        "spark.stelae.ray": address,
        "spark.stelae.cluster": "demo",
    }
    for name, value in options.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    try:
        yield session
    finally:
        session.stop()
        stop_session()


def follow_readme(folder: Path) -> None:
    """All its blocks, on the cluster of the other pages, without what these have left there."""
    elsewhere = {
        'stelae.launch("cluster.yaml")': 'stelae.connect(".stelae/demo")',
        "stelae.spark.session(db)": "own_spark",
        "s3://bucket": str(folder / "bucket"),
    }
    with stelae.connect(".stelae/demo") as database:
        for name in database.tables():
            database.delete_table(name)
        reader = Reader(folder, elsewhere, LEFT)
        with own_session(database.ray_address) as reader.names["own_spark"]:
            try:
                for page in (README, GUIDE):
                    assert reader.follow(page) == len(blocks_of(page))
            finally:
                reader.close()
        late = [(row["dest"], row["count"]) for row in database["late"].scan().to_pylist()]
        assert sorted(late) == [("BOS", 1), ("LAX", 1)]
        assert database["lax"].scan().to_pylist() == [{"id": 43, "dest": "LAX"}]
        for name in ("flights", "flights_2", "flights_before"):
            rows = database[name].scan().sort_by("id").to_pylist()
            assert [(row["id"], row["dest"], row["seats"]) for row in rows] == [
                (41, "BOS", 180),
                (42, "LAX", 180),
                (43, "LAX", 180),
            ]


@pytest.mark.ray
@pytest.mark.soak
def test_a_reader_can_do_what_the_pages_say(folder: Path) -> None:
    """All blocks of all pages, in order, on the cluster that the tutorial has stood up."""
    import ray

    grafana = GrafanaDouble()
    elsewhere = {
        "/etc/prometheus": str(folder),
        "http://grafana:3000": grafana.url,
        "glsa_…": TOKEN,
    }
    try:
        for name in FOLLOWED:
            reader = Reader(folder, elsewhere)
            try:
                assert reader.follow(DOCS / name) > 0
            finally:
                reader.close()
        assert json.loads((folder / "stelae.json").read_text())[0]["targets"]
        assert len(grafana.dashboards) == len(BOARDS)
        follow_readme(folder)
    finally:
        grafana.close()
        ray.shutdown()
        subprocess.run(
            [
                sys.executable,
                "-c",
                "from stelae.cli.app import main; main()",
                "down",
                "cluster.yaml",
            ],
            timeout=120.0,
            check=True,
        )
