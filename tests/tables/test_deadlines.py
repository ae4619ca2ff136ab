"""A deadline that has passed: the error names the call, and what it waited for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from stelae.core.errors import DeadlineExpired
from stelae.database.api import Database, Table

NO_TIME_S = 1e-9


def test_a_deadline_that_has_passed_says_what_it_was_for(db: Database, table: Table) -> None:
    """No server was asked, so nothing is known of any: the error must not speak of one."""
    many = [{"id": n} for n in range(500)]
    on_table: list[Callable[[], Any]] = [
        lambda: table.upsert({"id": 1}, timeout=NO_TIME_S),
        lambda: table.upsert(many, timeout=NO_TIME_S),
        lambda: table.delete([1], timeout=NO_TIME_S),
        lambda: table.get(1, timeout=NO_TIME_S),
        lambda: table.get(1, max_staleness=1.0, timeout=NO_TIME_S),
        lambda: table.get_many([1, 2], timeout=NO_TIME_S),
        lambda: table.scan(timeout=NO_TIME_S),
        lambda: table.count(timeout=NO_TIME_S),
        lambda: table.load(many, timeout=NO_TIME_S),
        lambda: table.alter(add_columns={"x": pa.int64()}, timeout=NO_TIME_S),
    ]
    for call in on_table:
        with pytest.raises(DeadlineExpired, match=table.name) as raised:
            call()
        assert "waited for" in str(raised.value)
    of_the_cluster: list[Callable[[], Any]] = [
        lambda: db.create_table("late", table.schema, key="id", timeout=NO_TIME_S),
        lambda: db.delete_table(table.name, timeout=NO_TIME_S),
        lambda: db.status(timeout=NO_TIME_S),
    ]
    for call in of_the_cluster:
        with pytest.raises(DeadlineExpired, match="passed when the call began"):
            call()
    assert table.count() == 0
    assert table.name in db.tables()
