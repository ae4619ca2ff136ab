"""From a cluster's file to a plan."""

from __future__ import annotations

from pathlib import Path

import pytest

import stelae
from stelae.core.config.spec_file import load_spec
from stelae.core.errors import InvalidArgument
from stelae.planner.hardware import SEED, SERVER, VM
from stelae.planner.layout import Medium, Scatter
from stelae.planning.plan import layout_of, measured_from, resolve

FILE = """apiVersion: stelae/v1
kind: Cluster
cluster: small
ray: {address: auto}
tservers: {count: 5, memory: 2GiB}
backups: {count: 4}
segment_size: 4MiB
"""


def test_the_file_says_what_there_is(tmp_path: Path) -> None:
    """Counts, memory, segments; a machine for each server where Ray is somebody else's."""
    path = tmp_path / "cluster.yaml"
    path.write_text(FILE)
    shape = layout_of(load_spec(path))
    assert (shape.servers, shape.backups, shape.machines) == (5, 4, 5)
    assert shape.memory_bytes == 2 << 30
    assert shape.segment_bytes == 4 << 20
    assert shape.replicas == 2
    assert stelae.plan(path).hardware == SERVER


def test_a_ray_of_its_own_is_one_machine() -> None:
    """And its rates are those of a small one."""
    made = stelae.plan({})
    assert made.layout.machines == 1
    assert made.hardware == VM


def test_a_cluster_is_half_full_unless_said() -> None:
    """Half of what the cleaner leaves room for, of whatever number of servers."""
    for changes in ({}, {"servers": 20}, {"memory": "64GiB"}, {"live": "100%"}):
        found = stelae.plan({}, **changes).resources
        assert found.memory_per_server_bytes == pytest.approx(found.memory_limit_bytes / 2)
    assert stelae.plan({}, data="3GB").layout.data_bytes == 3e9


def test_media_in_memory_and_few_backups_are_seen() -> None:
    """What the table may name is what the file has."""
    in_memory = load_spec({"media": {"disk": {"size": "512MiB"}}})
    assert layout_of(in_memory).medium is Medium.RAM
    assert layout_of(load_spec({"backups": {"count": 1}})).replicas == 1


def test_changes_and_rates_are_those_that_are_named() -> None:
    """Names of the command line, with _ for -; rates by name, and changes of them on top."""
    made = stelae.plan({}, hardware="seed", servers=100, k=3, disk_read="300MB/s")
    assert (made.layout.machines, made.layout.replicas) == (100, 3)
    assert made.hardware.disk_read_bytes_per_s == 300e6
    assert made.hardware.disk_seek_s == SEED.disk_seek_s
    for wrong in ({"hardware": "steam"}, {"xyzzy": 3}, {"k": "many"}):
        with pytest.raises(InvalidArgument):
            stelae.plan({}, **wrong)


def test_rates_that_are_given_stay() -> None:
    """Whatever the number of machines."""
    hardware, shape = resolve(load_spec({}), {"servers": "50"}, SEED, "--set")
    assert hardware == SEED
    assert shape.machines == 50


@pytest.mark.parametrize(
    ("content", "word"), [("{", "no JSON"), ("[" * 100_000, "no JSON"), ("{}", "suites")]
)
def test_files_without_results_are_refused(tmp_path: Path, content: str, word: str) -> None:
    """In words, with the file's name."""
    path = tmp_path / "results.json"
    path.write_text(content)
    with pytest.raises(InvalidArgument, match=word) as caught:
        measured_from(path, VM)
    assert "results.json" in str(caught.value)
    with pytest.raises(InvalidArgument, match="cannot be read"):
        measured_from(tmp_path / "none.json", VM)


def test_copysets_and_the_rate_of_re_replication_are_those_of_the_file(tmp_path: Path) -> None:
    """Where a group fits; the bound makes a lost backup's replicas take longer to be whole."""
    backups = "backups: {count: 4, copysets: 2, rereplication: 10MiB}"
    path = tmp_path / "cluster.yaml"
    path.write_text(FILE.replace("backups: {count: 4}", backups))
    shape = layout_of(load_spec(path))
    assert shape.scatter == Scatter(2)
    grouped, bounded = stelae.plan(path), stelae.plan(path, rereplication="1MB/s")
    scattered = stelae.plan(path, copysets="random")
    assert grouped.risk.at_each_power_failure.value < scattered.risk.at_each_power_failure.value
    assert bounded.risk.replica_window_s > 5 * grouped.risk.replica_window_s
    on_one = load_spec({"backups": {"count": 4, "copysets": 2}})
    assert layout_of(on_one).scatter == Scatter(), "one machine has no groups"
