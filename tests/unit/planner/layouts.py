"""Layouts and rates for the planner's tests: some by hand, and many by hypothesis."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from stelae.planner.hardware import SERVER, VM, Hardware
from stelae.planner.layout import Layout, Lost, Medium, Mode

GB = 10**9


def layout(machines: int = 10, **changes: Any) -> Layout:
    """A cluster with a tablet server and a backup on each machine, 10 GB of log in each."""
    values: dict[str, Any] = {
        "servers": machines,
        "backups": machines,
        "machines": machines,
        "memory_bytes": 64 * GB,
        "data_bytes": 10 * GB * machines,
        "tablets_per_server": 64,
        "live_share": 1.0,
        **changes,
    }
    return Layout(**values)


hardware_of_many_kinds: st.SearchStrategy[Hardware] = st.builds(
    lambda base, disk, link, cores, seek, tablet, fetches: replace(
        base,
        disk_read_bytes_per_s=disk,
        network_bytes_per_s=link,
        cores=cores,
        disk_seek_s=seek,
        tablet_s=tablet,
        fetches=fetches,
    ),
    st.sampled_from([VM, SERVER]),
    st.sampled_from([5e7, 1.5e8, 1e9, 3e9]),
    st.sampled_from([1.25e8, 1.25e9, 1.25e10]),
    st.sampled_from([1, 2, 8, 32]),
    st.sampled_from([0.0, 0.008]),
    st.sampled_from([0.0, 0.02]),
    st.sampled_from([2, 6, 16]),
)


@st.composite
def layouts(draw: st.DrawFn, machines_max: int = 200) -> Layout:
    """Clusters of one to many machines, with one or some servers on each."""
    machines = draw(st.integers(1, machines_max))
    each = draw(st.integers(1, 3))
    servers = machines * each + (machines == 1)
    lost = draw(st.sampled_from(Lost)) if machines > 1 else Lost.SERVER
    return layout(
        machines,
        servers=servers,
        backups=max(2, machines * draw(st.integers(1, 2))),
        data_bytes=servers * draw(st.sampled_from([1e6, 3e7, 1e9, 2e10])),
        row_bytes=draw(st.sampled_from([50.0, 100.0, 1000.0])),
        tablets_per_server=draw(st.sampled_from([1, 8, 64, 500])),
        medium=draw(st.sampled_from(Medium)),
        mode=draw(st.sampled_from(Mode)),
        split_above_bytes=draw(st.sampled_from([0.0, 0.0, 1e9])),
        lost=lost,
    )
