"""What it takes to connect again: newest masters of the cluster's files, and nothing shown."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from stelae.connectors.link import link_of
from stelae.core.config.peer_tls import OFF, PeerTls
from stelae.core.config.settings import Settings
from stelae.core.errors import InvalidArgument
from stelae.core.ids import Address
from stelae.database.origins import ClusterOrigin, HttpOrigin
from stelae.deploy.cluster_state import ClusterState, load_state
from stelae.recovery.spark_link import ClusterLink

SECRET = b"0123456789abcdef0123456789abcdef"
LINK = ClusterLink("c", (Address("127.0.0.1:1"),), SECRET, Settings())


def masters_of(origin: ClusterOrigin) -> tuple[str, ...]:
    opened = origin.open()
    masters = opened.database.master_addresses
    opened.close()
    return masters


def test_the_masters_of_the_clusters_files_count(tmp_path: Path) -> None:
    """Where they can be read, and are of the same cluster; then those of the link."""
    document: dict[str, Any] = {"cluster": "c", "data_dir": str(tmp_path)}
    state = tmp_path / "cluster.json"
    state.write_text(json.dumps({**document, "masters": {"master-1": "127.0.0.1:2"}}))
    origin = ClusterOrigin(LINK, str(tmp_path))
    assert masters_of(origin) == ("127.0.0.1:1",)  # there is no secret
    (tmp_path / "secret").write_bytes(bytes(32))
    assert masters_of(origin) == ("127.0.0.1:1",)  # it is another cluster's
    (tmp_path / "secret").write_bytes(SECRET)
    assert masters_of(origin) == ("127.0.0.1:2", "127.0.0.1:1")
    state.write_text(json.dumps({**document, "masters": {"m-1": "127.0.0.1:1", "m-2": "h:3"}}))
    assert masters_of(origin) == ("127.0.0.1:1", "h:3")
    state.unlink()
    assert masters_of(origin) == ("127.0.0.1:1",)


def test_the_tls_of_the_clusters_files_counts(tmp_path: Path) -> None:
    """A handle that is opened again after a launch with another mode connects with that mode."""
    state = ClusterState("c", str(tmp_path), {"master-1": "127.0.0.1:2"}, tls={"mode": "internal"})
    (tmp_path / "secret").write_bytes(SECRET)
    state.save()
    assert load_state(tmp_path).peer_tls == PeerTls("internal")
    assert ClusterOrigin(LINK, str(tmp_path))._newest_link().tls == PeerTls("internal")
    assert link_of(str(tmp_path)).tls == PeerTls("internal")
    assert ClusterOrigin(LINK)._newest_link().tls == LINK.tls == OFF


def test_origins_show_neither_secret_nor_token() -> None:
    """In logs and tracebacks of other processes."""
    shown = repr(ClusterOrigin(LINK)) + repr(HttpOrigin("http://h:1", "the-token"))
    assert "0123456789abcdef" not in shown
    assert "the-token" not in shown


def test_a_certificate_file_that_is_not_there_is_named() -> None:
    """On the machine where the handle is unpickled."""
    with pytest.raises(InvalidArgument, match="/nowhere/ca"):
        HttpOrigin("https://h:1", "x", "/nowhere/ca.pem").open()


def test_a_pickled_http_handle_knows_that_its_front_has_answered() -> None:
    """So a handle in another process waits for a front that is being restarted."""
    origin = HttpOrigin("http://h:1", "x")
    opened = origin.open()
    assert not origin.newest(opened.database).has_answered
    database: Any = opened.database
    database._transport.has_answered = True
    again = pickle.loads(pickle.dumps(origin.newest(opened.database)))
    opened.close()
    assert again.has_answered
    assert again == origin, "handles of one endpoint share a connection"
    assert hash(again) == hash(origin)
    reopened = again.open()
    database = reopened.database
    assert database.has_answered
    reopened.close()
