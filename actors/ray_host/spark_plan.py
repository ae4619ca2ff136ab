"""What a Spark actor is made from: known to every server's host, which imports nothing of Spark."""

from __future__ import annotations

from dataclasses import dataclass, field

from stelae.core.config.peer_tls import OFF, PeerTls
from stelae.core.config.settings import Settings
from stelae.core.ids import Address
from stelae.recovery.spark_session import SessionSize

NAMESPACE = "stelae"
SPARK_NAME = "spark"


@dataclass(frozen=True)
class SparkPlan:
    """Everything the Spark actor needs to know; the same at every restart."""

    cluster: str
    masters: tuple[Address, ...]
    secret: bytes = field(repr=False)
    settings: Settings
    size: SessionSize
    warm: bool
    peer_tls: PeerTls = OFF

    @property
    def ray_namespace(self) -> str:
        """Of RayDP's actors, whose names are the same for every session."""
        return f"{NAMESPACE}-{self.cluster}-{SPARK_NAME}"
