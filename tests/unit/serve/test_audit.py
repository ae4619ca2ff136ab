"""What is noted of the calls of admins, and who can read it."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any

import pytest

from stelae.core.errors import RetryLater
from stelae.serve.gateway import audit as audit_module
from stelae.serve.gateway.audit import (
    BODY_BYTES,
    KEPT_FILES,
    MAX_SOURCES,
    PATH_CHARS,
    REFUSED_S,
    AuditLog,
    shown_body,
)
from stelae.serve.gateway.audit_files import MARK, PIECE_BYTES, AuditFiles, Mark

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


def noted(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "http.jsonl").read_text().splitlines()]


async def test_times_in_lines_are_by_the_clock_of_the_log(tmp_path: Path) -> None:
    """When a call began and when its line was written; a duration is by a clock that never goes
    back."""
    at, monotonic_s = 1.0, 50.0
    log = AuditLog(tmp_path, monotonic=lambda: monotonic_s, now=lambda: at)
    entry = log.begin(SCOPE, "ci", "admin")
    at, monotonic_s = 0.5, 52.0
    await log.end(entry, 200, b"{}")
    log.refused(SCOPE, "bad token")
    began, early = "1970-01-01T00:00:01.000000+00:00", "1970-01-01T00:00:00.500000+00:00"
    times = [(line["stage"], line["began"], line["at"]) for line in noted(tmp_path)]
    assert times == [
        ("begun", began, began), ("answered", began, early), ("refused", early, early)
    ]  # fmt: skip
    assert noted(tmp_path)[1]["duration_s"] == 2.0


def test_refused_tokens_are_counted_by_source_once_a_minute(tmp_path: Path) -> None:
    """The first of each source at once, the others in the source's next line; beyond so many
    sources all together. So callers without a token cannot fill the files."""
    now = 0.0
    log = AuditLog(tmp_path, "one", monotonic=lambda: now)

    def refused(source: str, times: int) -> None:
        scope = {"method": "GET", "path": "/" + "x" * 5000, "client": (source, 1)}
        for _ in range(times):
            log.refused(scope, "this token is not known")

    refused("10.0.0.1", 1000)
    assert [(e["client"], e["calls"], e["status"]) for e in noted(tmp_path)] == [
        ("10.0.0.1", 1, 401)
    ]
    now = REFUSED_S
    log.flush_refused()
    assert [e["calls"] for e in noted(tmp_path)] == [1, 999]
    now = 2 * REFUSED_S
    log.flush_refused()
    for number in range(1000):
        refused(f"10.1.0.{number}", 3)
    assert len(noted(tmp_path)) == 2 + MAX_SOURCES + 1
    log.flush_refused(all_of_them=True)
    found = noted(tmp_path)
    assert sum(e["calls"] for e in found) == 1000 + 3000
    assert found[-1]["client"] == "others"
    assert all(len(e["path"]) <= PATH_CHARS for e in found)
    assert len({e["id"] for e in found}) == len(found)
    assert len(found) == 2 + 2 * (MAX_SOURCES + 1)


def test_what_tokens_may_not_do_is_counted_by_token_once_a_minute(tmp_path: Path) -> None:
    """However often one asks, from wherever: so it cannot push what others did out of the files.
    Bad tokens leave these counters alone, and the other way round."""
    now = 0.0
    log = AuditLog(tmp_path, "one", monotonic=lambda: now)

    def refused(token: str, times: int) -> None:
        for number in range(times):
            path = "/" + "x" * 5000
            scope = {"method": "PUT", "path": path, "client": (f"10.0.0.{number}", 1)}
            log.not_permitted(scope, token, "read", "this needs admin" + "x" * 5000)

    for number in range(MAX_SOURCES + 1):
        log.refused({**SCOPE, "client": (f"10.1.0.{number}", 1)}, "this token is not known")
    (tmp_path / "http.jsonl").write_bytes(b"")
    refused("ada", 50_000)
    (first,) = noted(tmp_path)
    shown = (first["token"], first["role"], first["calls"], first["status"], first["client"])
    assert shown == ("ada", "read", 1, 403, "10.0.0.0")
    assert len((tmp_path / "http.jsonl").read_bytes()) < 2500
    now = REFUSED_S
    log.flush_refused()
    assert [e["calls"] for e in noted(tmp_path)] == [1, 49_999]
    for number in range(1000):
        refused(f"t{number}", 2)
    log.flush_refused(all_of_them=True)
    found = noted(tmp_path)
    assert sum(e["calls"] for e in found) == 50_000 + 2000
    assert len(found) == 2 + 2 * MAX_SOURCES
    assert (found[-1]["token"], found[-1]["role"]) == ("others", "")


def test_a_refused_token_is_refused_though_nothing_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Where the disk is full it is in the program's log."""

    def full(*_: object, **__: object) -> None:
        raise OSError("no space")

    log = AuditLog(tmp_path)
    monkeypatch.setattr("stelae.serve.gateway.audit._append", full)
    log.refused(SCOPE, "this token is not known")
    assert "this token is not known" in caplog.text
    log.not_permitted(SCOPE, "ada", "read", "this needs admin")
    assert "this needs admin" in caplog.text


async def test_a_line_is_there_as_a_whole_or_the_call_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that takes a piece of it only; and a piece that a loss of power has left."""
    log, file = AuditLog(tmp_path), tmp_path / "http.jsonl"
    await log.end(log.begin(SCOPE, "ci", "admin"), 200, b"")
    before, whole = file.read_bytes(), os.write

    def piece(descriptor: int, data: bytes) -> int:
        return whole(descriptor, data[:20])

    monkeypatch.setattr(os, "write", piece)
    with pytest.raises(RetryLater):
        log.begin(SCOPE, "ci", "admin")
    monkeypatch.setattr(os, "write", whole)
    assert file.read_bytes() == before
    with file.open("ab") as out:
        out.write(b'{"at":"2026')
    entry = log.begin(SCOPE, "ci", "admin")
    *_, torn, last = file.read_text().splitlines()
    assert (torn, json.loads(last)["id"]) == ('{"at":"2026', entry.id)


def test_a_mark_that_cannot_be_believed_is_no_mark(tmp_path: Path) -> None:
    """All lines are read again then; they are the same rows."""
    log, files = AuditLog(tmp_path), AuditFiles(tmp_path)
    log.begin(SCOPE, "ci", "admin")
    piece = files.after(files.read_mark())
    assert len(piece.lines) == 2
    files.write_mark(piece.mark)
    assert files.read_mark() == piece.mark
    assert files.after(piece.mark).lines == []
    (tmp_path / MARK).write_bytes(b'{"file": "x", "offset": 1')
    assert files.read_mark() == Mark()
    other = files.after(Mark("another file", 7))
    assert (len(other.lines), other.gone) == (2, "another file")


def test_files_that_were_set_aside_are_read_in_the_order_of_their_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the oldest on. Setting a file aside deletes the oldest one, and no other."""
    monkeypatch.setattr(audit_module, "FILE_BYTES", 1)
    log, files = AuditLog(tmp_path), AuditFiles(tmp_path)
    begun = [log.begin(SCOPE, "ci", "admin").id for _ in range(KEPT_FILES + 2)]
    assert len(list(tmp_path.glob("*.jsonl"))) == KEPT_FILES
    found, mark = list[str](), Mark()
    while (piece := files.after(mark)).lines:
        found += [json.loads(line)["id"] for line in piece.lines if line]
        mark = piece.mark
    assert found == begun[2:]


def test_a_line_counts_once_its_end_is_there(tmp_path: Path) -> None:
    """Of the newest file it is waited for; in one that was set aside it is torn. A line beyond all
    bounds is passed over in pieces."""
    files, newest = AuditFiles(tmp_path), tmp_path / "http.jsonl"
    newest.write_bytes(b'{"id": "a"}\n{"id": "b"')
    piece = files.after(Mark())
    assert piece.lines == [b'{"id": "a"}', b""]
    assert files.after(piece.mark).lines == []
    newest.rename(tmp_path / "http.1.jsonl")
    newest.write_bytes(b"x" * (2 * PIECE_BYTES + 10) + b'\n{"id": "c"}\n')
    lines, mark = [], piece.mark
    while (piece := files.after(mark)).lines:
        lines += piece.lines
        mark = piece.mark
    assert lines[-2:] == [b'{"id": "c"}', b""]
    assert not any(b'"b"' in line for line in lines)
