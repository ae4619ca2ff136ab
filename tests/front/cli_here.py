"""The command line in this process, on a cluster in this process: `run_here` of the conftest."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pyarrow as pa
import pytest

from stelae.cli import app as cli
from stelae.cli.table import create as cli_create
from stelae.cli.table import rows as cli_rows
from stelae.cli.table import tables as cli_tables
from stelae.cli.table import transfers as cli_transfers
from stelae.core.schema.durability import segments
from stelae.database.api import Database, Table

Run = Callable[..., tuple[int, str, str]]
"""``run(*arguments, stdin=b"", terminal=False)``: exit code, standard output, standard error."""
DISK = segments("disk")


def runner(
    database: Database, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Run:
    """Runs commands about tables on this database."""
    for module in (cli_create, cli_rows, cli_tables, cli_transfers):
        monkeypatch.setattr(module, "open_cluster", lambda _: nullcontext(database))

    def run(
        *arguments: str, stdin: str | bytes = b"", terminal: bool = False
    ) -> tuple[int, str, str]:
        data = stdin.encode() if isinstance(stdin, str) else stdin
        given = io.TextIOWrapper(io.BytesIO(data))
        monkeypatch.setattr(given, "isatty", lambda: terminal, raising=False)
        monkeypatch.setattr(sys, "stdin", given)
        with pytest.raises(SystemExit) as ended:
            cli.main(list(arguments))
        said = capsys.readouterr()
        code = ended.value.code
        return code if isinstance(code, int) else 0, said.out, said.err

    return run


def done(run: Run, *arguments: str, **options: Any) -> str:
    """The output of a command that must succeed."""
    code, out, err = run(*arguments, **options)
    assert code == 0, err
    return out


def lines_of(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def row_of(table: Table, key: Any) -> dict[str, Any]:
    """A row that must be there."""
    found = table.get(key)
    assert found is not None
    return found


def make(database: Database, name: str, schema: pa.Schema, key: Any) -> Table:
    return database.create_table(name, schema, key=key, durability=DISK)
