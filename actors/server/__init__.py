"""What every server has: identity, masters, live servers, and care with its disk.

A server never starts on the data directory of another cluster or of another kind of server. Its
incarnation rises by one at each start. A change of the disk that has begun is carried through even
if its caller is cancelled (`uncancellable`).

1. `identity` reads and raises the `instance` file, then listens with the server's handlers.
2. `master_list` runs one heartbeat task for each master, those from the disk included.
3. A leader's reply carries the live servers and the state of backups; `membership` takes both.
4. `membership` wakes the logs that wait for another backup, and answers where a server listens.

`disk` says what a damaged disk's errors mean, and how files are handled off the event loop.

Read first: `membership`. Also searched for as: incarnation, heartbeat, cluster view.
"""
