"""How the processes of a cluster encrypt what they send each other. Pure.

`PeerTls` is the ``tls:`` section of ``cluster.yaml`` as plans, links and ``cluster.json`` carry it.
What the modes mean, and against whom they help, is in ``docs/transport-security.md``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from stelae.core.errors import InvalidArgument

TlsMode = Literal["off", "internal", "files"]
"""``off``: no encryption. ``internal``: certificates that each process makes by itself, under an
authority whose key follows from the cluster's secret. ``files``: certificates of an operator's."""

INSTALL = "pip install 'stelae[tls]'"
"""Installs the library that the mode ``internal`` needs."""


@dataclass(frozen=True, slots=True)
class PeerTls:
    """The mode and, for the mode ``files``, absolute paths that exist on every machine."""

    mode: TlsMode = "off"
    certificate: str = ""
    """File in PEM: the certificate of this machine's processes, and the chain above it."""
    key: str = ""
    """File in PEM: the private key of that certificate, without a passphrase."""
    authority: str = ""
    """File in PEM: the certificates of the authorities that sign the cluster's certificates."""

    @property
    def is_on(self) -> bool:
        """Whether connections between machines are encrypted."""
        return self.mode != "off"

    @property
    def files(self) -> dict[str, str]:
        """The paths, by their names in ``cluster.yaml``; none but in the mode ``files``."""
        if self.mode != "files":
            return {}
        return {
            "tls.certificate": self.certificate,
            "tls.key": self.key,
            "tls.authority": self.authority,
        }

    def document(self) -> dict[str, str]:
        """The fields as JSON has them; `peer_tls_of` reads them back. Empty: `OFF`."""
        if not self.is_on:
            return {}
        fields = {"certificate": self.certificate, "key": self.key, "authority": self.authority}
        return {"mode": self.mode, **{name: path for name, path in fields.items() if path}}

    def __str__(self) -> str:
        return ", ".join([self.mode, *(f"{name} {path}" for name, path in self.files.items())])


OFF = PeerTls()


def peer_tls_of(document: Mapping[str, str]) -> PeerTls:
    """Read what `PeerTls.document` made.

    Raises InvalidArgument: an unknown mode, which a newer version of Stelae may have written.
    """
    known: dict[str, TlsMode] = {mode: mode for mode in get_args(TlsMode)}
    mode = known.get(document.get("mode", "off"))
    if mode is None:
        raise InvalidArgument(
            f"this cluster was launched with tls.mode {document['mode']!r}, which this version of "
            f"Stelae does not know (it knows {', '.join(known)}): upgrade Stelae here"
        )
    return PeerTls(
        mode,
        document.get("certificate", ""),
        document.get("key", ""),
        document.get("authority", ""),
    )
