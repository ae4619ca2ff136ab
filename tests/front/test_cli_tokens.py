"""``stelae token`` against a real cluster, in this process."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from unittest.mock import MagicMock

import pytest

from stelae.cli import which_cluster
from stelae.cli.cluster import tokens as cli_tokens
from stelae.deploy import cluster_files
from stelae.deploy.revoked_tokens import drop_revoked
from stelae.serve.gateway.tokens import (
    ADMIN_TOKEN_FILE,
    drop_of_file,
    entries_of_folder,
    hash_of_file,
    make_admin_token,
)
from tests.cluster_fixture import local_cluster
from tests.front.http_world import World, problem_of
from tests.front.test_cli_operators import database_of, run


async def test_tokens_are_made_listed_and_revoked_by_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is printed is good at once; the token of launch can be revoked too, and the next launch
    makes another."""
    folder = tmp_path / "data"
    launched = make_admin_token(folder)
    async with local_cluster(tmp_path / "c", tservers=1) as cluster:
        monkeypatch.setattr(cli_tokens, "open_cluster", lambda _: database_of(cluster))
        monkeypatch.setattr(cli_tokens, "files_of", lambda *_: nullcontext(folder))
        world = World(cluster)
        world.verifier.replace(entries_of_folder(folder))

        async def command(*arguments: str) -> tuple[int, str]:
            return await asyncio.to_thread(run, capsys, "token", *arguments)

        code, out = await command("create", "ada", "--role", "write")
        assert code == 0
        ada = {"Authorization": f"Bearer {out.strip()}"}
        admin = {"Authorization": f"Bearer {launched}"}
        async with world.client(None) as http:
            assert (await http.get("/v1/tables", headers=ada)).status_code == 200
            problem_of(await http.get("/v1/tokens", headers=ada), 403, "not-permitted")
            assert (await http.get("/v1/tokens", headers=admin)).status_code == 200
            code, out = await command("list", "--json")
            listed = [(t["name"], t["role"]) for t in json.loads(out)["tokens"]]
            assert listed == [("ada", "write"), ("admin", "admin")]
            assert "ada" in (await command("list"))[1]
            assert (await command("create", "ada"))[0] == 1
            assert (await command("create", "admin", "--role", "admin"))[0] == 2
            assert (await command("create", "bob", "--role", "owner"))[0] in (1, 2)
            assert (await command("revoke", "ada"))[0] == 0
            assert (await command("revoke", "ada"))[0] == 1
            assert (await command("revoke", "admin"))[0] == 0
            assert entries_of_folder(folder) == []
            await asyncio.sleep(2.0)
            for headers in (ada, admin):
                answer = await http.get("/v1/tables", headers=headers)
                problem_of(answer, 401, "not-authenticated")
    assert make_admin_token(folder) != launched
    assert (folder / ADMIN_TOKEN_FILE).stat().st_mode & 0o077 == 0


def test_a_cluster_that_is_named_has_its_files_from_its_servers_and_they_keep_what_is_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its data_dir is on other machines: the token of launch is found, and taken out, there."""
    kept = tmp_path / "kept"
    make_admin_token(kept)
    told: list[list[str]] = []

    @contextmanager
    def home_of(cluster: str, folders: Iterable[str | Path]) -> Iterator[Path]:
        yield kept

    def publish(home: Path, cluster: str) -> None:
        told.append([entry.name for entry in entries_of_folder(home)])

    monkeypatch.setattr(which_cluster, "join", lambda address: None)
    monkeypatch.setattr(cluster_files, "home_of", home_of)
    monkeypatch.setattr(cluster_files, "publish", publish)
    monkeypatch.chdir(tmp_path)
    database = MagicMock(cluster="demo", home="", ray_address="auto")
    with which_cluster.files_of(Path("demo"), database) as home:
        (entry,) = entries_of_folder(home)
    assert not told, "nothing was changed"
    with which_cluster.files_of(Path("demo"), database) as home:
        assert hash_of_file(home, "admin") == entry.sha256
        drop_of_file(home, entry.sha256)
    assert told == [[]]


async def test_a_token_of_launch_that_was_revoked_over_http_is_not_handed_out_again(
    tmp_path: Path,
) -> None:
    """The next launch asks the masters, and makes another; where they do not answer nothing is."""
    folder = tmp_path / "data"
    launched = make_admin_token(folder)
    async with local_cluster(tmp_path / "c", tservers=1) as cluster:
        world = World(cluster)
        world.verifier.replace(entries_of_folder(folder))
        database = await asyncio.to_thread(database_of, cluster)
        try:
            assert not await asyncio.to_thread(drop_revoked, database, folder)
            assert make_admin_token(folder) == launched
            async with world.client(None) as http:
                admin = {"Authorization": f"Bearer {launched}"}
                gone = await http.delete("/v1/tokens/admin", headers=admin)
                assert gone.status_code == 204, gone.text
                assert await asyncio.to_thread(drop_revoked, database, folder)
                made = make_admin_token(folder)
                world.verifier.replace(entries_of_folder(folder))
                assert made != launched
                answer = await http.get("/v1/tables", headers=admin)
                problem_of(answer, 401, "not-authenticated")
                admin = {"Authorization": f"Bearer {made}"}
                assert (await http.get("/v1/tables", headers=admin)).status_code == 200
            assert not await asyncio.to_thread(drop_revoked, database, folder)
        finally:
            await asyncio.to_thread(database.close)
