"""Tables of the command line: what is folded on a narrow terminal, and what never is."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from stelae.cli.output import FOLDED_WIDTH, KEPT_WORD, column_widths, print_table

ID = "0b0a6c8f4d5e4f6a8b7c9d0e1f2a3b4c"
NODE = "1f3c9a52b7e84d0c9d5b60e1a7c2f48de0b91d73c6a51f3c9a52b7e8"
ADDRESS = "10.128.14.203:43117"
SAFEKEEPERS = ["id", "safekeeper", "status", "state", "address", "node", "logs"]
WIDE = [
    [1, "safekeeper-1", "active", "live", ADDRESS, NODE, "12"],
    [2, "safekeeper-2", "decommissioned", "dead", ADDRESS, NODE, "0, 2 broken"],
]


def printed(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    columns: list[str],
    rows: list[list[Any]],
    width: int = 80,
) -> list[str]:
    """The lines of a table on a terminal that is so wide."""
    monkeypatch.setenv("COLUMNS", str(width))
    print_table("some", columns, rows)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= width
    return lines


def column_of(lines: list[str], title: str) -> str:
    """All that stands in a column, without its folds."""
    number = next(n for n, line in enumerate(lines) if title in line)
    start = lines[number].index(title)
    end = start + len(title)
    rule = lines[number + 1]
    assert set(rule) <= set(" ─")
    others = [line.ljust(len(rule)) for line in lines[number + 2 :]]
    while end < len(rule) and any(line[end] != " " for line in others):
        end += 1
    return "".join(line[start:end].strip() for line in others)


def test_a_state_is_whole_and_an_id_that_is_too_long_is_folded(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Beside a long column; nothing is cut of either."""
    columns, row = ["safekeeper", "status", "node"], ["safekeeper-2", "decommissioned", NODE]
    lines = printed(monkeypatch, capsys, columns, [row])
    assert any("decommissioned" in line for line in lines)
    assert not any(NODE in line for line in lines)
    assert column_of(lines, "node") == NODE


def test_a_table_that_is_too_wide_is_shown_row_by_row(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every value on a line of its own, and none of them is broken; what is empty is not told."""
    first, second = WIDE
    rows = [[*first[:-1], ""], second]
    shown = printed(monkeypatch, capsys, SAFEKEEPERS, rows)
    lines = [line.strip().split(maxsplit=1) for line in shown]
    assert lines[0] == ["some"]
    told = [list(pair) for is_one, pair in itertools.groupby(lines[1:], bool) if is_one]
    assert told == [
        [[name, str(value)] for name, value in zip(SAFEKEEPERS, row, strict=True) if value]
        for row in rows
    ]


def test_a_table_in_a_file_is_not_folded(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Programs and people search there for whole lines."""
    monkeypatch.delenv("COLUMNS", raising=False)
    print_table("some", SAFEKEEPERS, WIDE)
    lines = capsys.readouterr().out.splitlines()
    assert any("decommissioned" in line and NODE in line for line in lines)


def test_those_columns_that_lack_least_get_what_is_left() -> None:
    """Each has room for its words; sentences and ids are folded first, and nothing is too wide."""
    columns = ["tablet", "state", "problem"]
    cells = [[ID, "live, leader", "waits for backup-2, which is away"]]
    assert column_widths(columns, cells, 200) == [len(text) for text in cells[0]]
    for width in range(80, 30, -1):
        found = column_widths(columns, cells, width)
        least = [FOLDED_WIDTH, len("leader"), len("backup-2,")]
        if sum(least) + 2 * len(columns) > width:
            assert found is None
            continue
        assert found is not None
        assert sum(found) + 2 * len(columns) <= width
        assert all(has >= wanted for has, wanted in zip(found, least, strict=True))
    assert column_widths(["id"], [["x" * KEPT_WORD]], KEPT_WORD + 1) is None
    assert column_widths(["id"], [["x" * (KEPT_WORD + 1)]], KEPT_WORD + 1) == [KEPT_WORD - 1]
