"""What has the cluster's secret does not show it: not in logs, tracebacks or a notebook's cell."""

from __future__ import annotations

from typing import Any

import pytest

from stelae.actors.ray_host.host import ServerPlan
from stelae.actors.ray_host.spark_process import Setup
from stelae.core.config.settings import Settings
from stelae.core.records.records import ServerKind
from stelae.recovery.spark_link import ClusterLink
from stelae.recovery.spark_session import SessionSize
from stelae.runtime.tcp.handshake import Credentials
from stelae.serve.deployment import GatewayPlan

SECRET = b"do not show these 32 bytes here."


def holders() -> list[Any]:
    return [
        ServerPlan(ServerKind.MASTER, "m", "c", SECRET, "/f", "127.0.0.1", 1, {}, Settings()),
        GatewayPlan("c", (), SECRET, Settings()),
        ClusterLink("c", (), SECRET, Settings()),
        Setup("auto", "ns", "c", (), SECRET, Settings(), SessionSize(1, 1, 1 << 30), 1.0),
        Credentials("c", SECRET),
    ]


@pytest.mark.parametrize("holder", holders(), ids=lambda holder: type(holder).__name__)
def test_a_repr_does_not_show_the_secret(holder: Any) -> None:
    """Nor does what `str` and an f-string make of it."""
    for text in (repr(holder), str(holder), f"{[holder]}"):
        assert "do not show" not in text
