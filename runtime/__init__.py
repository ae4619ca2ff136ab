"""The real world under a server: TCP, files, clocks and processes behind `stelae.core.runtime`.

Import from the modules: this file imports none of them. Nothing is shared between two runtimes. A
file's content is durable when its sync returns; after a failed sync every later one of that file
fails too. Calls end in an answer or an error by their deadline.

- `tcp`: calls between servers.
- `real`: the `Runtime` of a server, put together; `client`: that of a process that only calls.
- `files`: the data directory; `sync_pace`: on which thread a sync runs; `conformance`: its rules.
- `near_files`: files of other servers on this machine, read past them.
- `mapped_ahead`, `allocator`: memory; `processes`: whether another process is gone.
- `logs`, `traces`: what people see of a process; `free_ports`: ports for what listens soon.

Read first: `real`. Also searched for as: asyncio, transport, fsync, environment, platform layer.
"""
