"""What is noted of the calls of admins, and who can read it."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from stelae.serve.gateway.audit import BODY_BYTES, AuditLog, shown_body

URL = "postgresql://u:se/cr@et@h:5432/db"
SCOPE = {"method": "PUT", "path": "/v1/cluster/spec", "client": ("127.0.0.1", 1)}


@pytest.mark.parametrize(
    ("body", "shown"),
    [
        (
            f'{{"cas_store": {{"url": "{URL}"}}}}',
            '{"cas_store": {"url": "postgresql://…@h:5432/db"}}',
        ),
        (r'{"url": "p:\/\/u:s\"x@h\/db"}', r'{"url": "p:\/\/…@h\/db"}'),
        (
            f"cas_store:\n  url: {URL}\nby: a@b",
            "cas_store:\n  url: postgresql://…@h:5432/db\nby: a@b",
        ),
        ('{"a": "s3://bucket/x", "b": "a@b"}', '{"a": "s3://bucket/x", "b": "a@b"}'),
        ('"p://u:"s3"@h', '"p://u:"s3"@h'),
    ],
)
def test_no_password_of_a_url_is_noted(body: str, shown: str) -> None:
    """Whether as JSON or YAML; nothing else is left out. Quotes end a URL."""
    assert shown_body(body.encode()) == shown


def test_where_a_body_is_cut_off_a_url_is_left_out() -> None:
    """What comes next may be what tells a password from a host."""
    for spare in range(2, 60):
        body = "x" * (BODY_BYTES - spare) + " postgresql://user:secret-secret-secret@host/db"
        assert ":s" not in shown_body(body.encode())


async def test_with_a_file_it_is_in_that_file_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More people read a worker's log. Without one, or where it cannot be written, it is there."""
    caplog.set_level(logging.INFO, "stelae.audit")
    log = AuditLog(tmp_path)
    await log.end(log.begin(SCOPE, "ci", "admin"), 400, f'"{URL}"'.encode())
    assert not caplog.records
    noted = [json.loads(line) for line in (tmp_path / "http.jsonl").read_text().splitlines()]
    assert [note["stage"] for note in noted] == ["begun", "answered"]
    assert noted[1]["body"] == '"postgresql://…@h:5432/db"'
    entry = log.begin(SCOPE, "ci", "admin")

    def full(*_: object, **__: object) -> None:
        raise OSError("no space")

    monkeypatch.setattr("stelae.serve.gateway.audit._append", full)
    await log.end(entry, 200, b"{}")
    assert entry.id in caplog.text
    caplog.clear()
    alone = AuditLog()
    await alone.end(alone.begin(SCOPE, "ci", "admin"), 200, b"{}")
    assert len(caplog.records) == 2
