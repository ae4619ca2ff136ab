"""What it takes to connect to a cluster again: after a fork, and where a handle is unpickled.

Pickles of an origin hold the cluster's secret, or the token: keep them as safe as the data. Neither
is ever shown by ``repr``.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field, replace
from typing import Any

from stelae.client.aio import Loop
from stelae.client.connection import Opened
from stelae.client.database import AsyncDatabase
from stelae.core.errors import InvalidArgument
from stelae.core.ids import Address
from stelae.database.callers import caller
from stelae.recovery.spark_link import ClusterLink
from stelae.runtime.client import client_runtime
from stelae.runtime.tcp.direct import DirectCalls
from stelae.runtime.tcp.handshake import Credentials


@dataclass(frozen=True, slots=True)
class ClusterOrigin:
    """A cluster that was connected to by its name or its data_dir, or that was launched."""

    link: ClusterLink
    home: str = ""
    """Folder with the cluster's files; on machines that lack it the link's addresses are used."""

    def open(self) -> Opened:
        link = self._newest_link()
        loop, by = Loop(), caller()

        async def open_database() -> AsyncDatabase:
            runtime = client_runtime(link.cluster, link.secret, tls=link.tls)
            return AsyncDatabase(runtime, link.masters, link.settings, by)

        try:
            calls = DirectCalls(Credentials(link.cluster, link.secret, tls=link.tls))
            return Opened(loop, loop.run(open_database()), calls)
        except BaseException:
            loop.close()
            raise

    def newest(self, database: Any) -> ClusterOrigin:
        link = replace(self.link, masters=database.master_addresses)
        return replace(self, link=link)

    def _newest_link(self) -> ClusterLink:
        """Where masters listen, and with which TLS: the files know of masters that came since the
        origin was made, and of a launch with another ``tls.mode``."""
        if self.home:
            from stelae.deploy import cluster_state

            # Another user's file, or none, or of another cluster: the addresses known may do.
            with contextlib.suppress(OSError, InvalidArgument):
                state = cluster_state.load_state(self.home)
                if state.secret == self.link.secret:
                    from_file = map(Address, state.masters.values())
                    # The file may be older than the link: masters that only the link has count too.
                    masters = tuple(dict.fromkeys((*from_file, *self.link.masters)))
                    return replace(self.link, masters=masters, tls=state.peer_tls)
        return self.link


@dataclass(frozen=True, slots=True)
class HttpOrigin:
    """An HTTP endpoint. ``ca_file``: absolute path of the certificates that are believed."""

    url: str
    token: str = field(repr=False)
    ca_file: str | None = None
    has_answered: bool = field(default=False, compare=False)
    """Whether the endpoint has answered before, to whichever process: then it is being restarted
    when it refuses connections."""

    def open(self) -> Opened:
        from stelae.client.http.database import HttpDatabase

        database: Any = HttpDatabase(
            self.url, self.token, ca_file=self.ca_file, has_answered=self.has_answered
        )
        return Opened(Loop(), database, None)

    def newest(self, database: Any) -> HttpOrigin:
        return replace(self, has_answered=database.has_answered)
