"""The servers of a cluster: asyncio classes over a `Runtime`, and the Ray actors that host them.

A server reaches clock, randomness, network, disk and shared objects only through the
`stelae.core.runtime.Runtime` that it is given, so the same classes run in `stelae.simulation`. Only
`ray_host` imports Ray or `stelae.runtime`. Only `master`, and the catalog store in `cas_store`,
import `stelae.coordinator`.

- `server`: what every server has: its identity, its masters, what it knows of the other servers.
- `master`: keeps the catalog in a Raft group; the leader coordinates the cluster.
- `tserver`: hosts tablets and indexlets, and answers reads and writes of clients.
- `backup`: stores replicas of log segments, fences former owners, serves recoveries.
- `safekeeper`: stores the ends of the logs of tables with ``wal(n)``, one timeline a tablet.
- `cas_store`: compares and swaps the configurations of timelines.
- `raft`: runs one replica of a Raft group, for masters and for tablets with ``replicas(n)``.
- `ray_host`: makes a server a Ray actor, and keeps the cluster's Spark session.

Read first: `tserver`. Also searched for as: nodes, daemons, services, control plane, data plane.
"""
