"""Stands clusters up on Ray, finds them, restarts and takes down their servers.

A cluster's files (state, secret, tokens, last spec) lie on each machine with a server; of copies
the newest counts. A server stays on the machine that has its disk. A step may be repeated: a call
that was interrupted is finished by the next one.

1. `launcher` makes or reads the data directory, and holds it by a lock (`locks`).
2. `node_checks` asks the machines for folders, ports, memory and certificates (`nodes`).
3. `machines` chooses where each server runs; `ray_session` starts or joins Ray.
4. `launcher` starts the servers' actors, and waits until each listens.
5. `cluster_files` gives the cluster's files, with its `cluster_state`, to all servers.

`masters` adds and removes masters, `restarts` restarts servers one at a time, `certificates` renews
the HTTP front's certificate. They need of a connection to the cluster what `changed` says. `asked`
keeps the last spec, `revoked_tokens` what was revoked.

Read first: `launcher`. Also searched for as: bootstrap, provisioning, rolling restart, placement.
"""
