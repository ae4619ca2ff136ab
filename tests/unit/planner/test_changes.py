"""Changes as people write them."""

from __future__ import annotations

import pytest

from stelae.core.errors import InvalidArgument
from stelae.planner.changes import (
    FAILURE_WORDS,
    HARDWARE_WORDS,
    LAYOUT_WORDS,
    changed,
    changes_of,
    failures_with,
)
from stelae.planner.hardware import SERVER
from stelae.planner.layout import Lost, Medium, Mode, Scatter
from stelae.planner.risk import Failures
from tests.unit.planner.layouts import layout

SAMPLES = {
    "k": ("3", 3),
    "servers": ("20", 20),
    "backups": ("30", 30),
    "machines": ("15", 15),
    "memory": ("1GiB", 1 << 30),
    "data": ("1.5TB", 1_500_000_000_000),
    "row": ("1KB", 1000),
    "segment": ("16MiB", 16 << 20),
    "tablets": ("7", 7),
    "takers": ("2", 2),
    "live": ("60%", 0.6),
    "medium": ("ram", Medium.RAM),
    "copysets": ("5", Scatter(5)),
    "lost": ("machine", Lost.MACHINE),
    "mode": ("metadata-first", Mode.METADATA_FIRST),
    "cores": ("64", 64),
    "threads": ("8", 8),
    "fetches": ("9", 9),
    "network": ("25Gbit", 25e9 / 8),
    "rereplication": ("64MB/s", 64e6),
    "split-above": ("2GiB", float(2 << 30)),
    "disk-read": ("150MB/s", 150e6),
    "disk-write": ("1GB", 1e9),
    "seek": ("8ms", 0.008),
    "detection": ("2s", 2.0),
    "server-mttf": ("30d", 30 * 86400.0),
    "disk-mttf": ("3650d", 3650 * 86400.0),
    "replace": ("5m", 300.0),
    "power-failures": ("2", 2),
    "power-share": ("5%", 0.05),
}


def test_there_is_a_sample_of_each_word() -> None:
    """So that the next test tries all of them."""
    assert set(SAMPLES) == set(LAYOUT_WORDS) | set(HARDWARE_WORDS) | set(FAILURE_WORDS)


@pytest.mark.parametrize("word", SAMPLES)
def test_each_word_changes_its_field(word: str) -> None:
    """And that field has the value."""
    text, value = SAMPLES[word]
    changes = changes_of([f"{word}={text}"])
    hardware, shape = changed(SERVER, layout(10), changes)
    failures = failures_with(Failures(), changes)
    if word in FAILURE_WORDS:
        assert getattr(failures, FAILURE_WORDS[word][0]) == value
        assert (hardware, shape) == (SERVER, layout(10))
        return
    assert failures == Failures()
    if word in LAYOUT_WORDS:
        assert getattr(shape, LAYOUT_WORDS[word][0]) == value
        assert hardware == SERVER
    else:
        assert getattr(hardware, HARDWARE_WORDS[word][0]) == value
        assert shape == layout(10)


def test_several_changes_stand_in_one_text() -> None:
    """With commas, and in several texts."""
    assert changes_of(["k=3, servers=5", "row=1KB"]) == {"k": "3", "servers": "5", "row": "1KB"}


def test_backups_and_machines_grow_with_the_servers() -> None:
    """Unless they are said; of one machine come as many as servers."""
    _, grown = changed(SERVER, layout(10), {"servers": "40"})
    assert (grown.servers, grown.backups, grown.machines) == (40, 40, 40)
    _, said = changed(SERVER, layout(10), {"servers": "40", "machines": "20"})
    assert (said.backups, said.machines) == (40, 20)
    one = layout(1, servers=3, backups=3)
    assert changed(SERVER, one, {"servers": "8"})[1].machines == 8
    assert changed(SERVER, one, {"servers": "2"})[1].machines == 1
    assert changed(SERVER, one, {"servers": "8", "machines": "1"})[1].machines == 1


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("k", "NAME=VALUE"),
        ("k=", "NAME=VALUE"),
        ("server=3", "do you mean servers"),
        ("xyzzy=3", "there are k, servers"),
        ("k=two", "whole number"),
        ("k=-1", "whole number"),
        ("k=3,k=4", "given twice"),
        ("memory=lots", "size such as"),
        ("live=150%", "share such as"),
        ("medium=tape", "disk, cached, ram"),
        ("copysets=some", "random, or the size"),
        ("network=fast", "rate such as"),
        ("seek=soon", "duration such as"),
        ("cores=0", "cores must be above 0"),
    ],
)
def test_wrong_changes_say_what_would_do(text: str, word: str) -> None:
    """The option, the name, and what may stand there."""
    with pytest.raises(InvalidArgument, match=word):
        changed(SERVER, layout(10), changes_of([text]))
