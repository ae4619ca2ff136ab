"""The segments of a tablet's log, as its owner keeps them replicated on backups.

A byte counts once every replica has it under the segment's present epoch, and the catalog knows
that epoch if it was raised. A replacement gets no certificate before it has all bytes. A replaced
replica is freed only when what took its place holds all that was acknowledged.

1. `segment` appends an entry with its certificate, and wakes the task of each replica.
2. A replica without a backup gets one that `placement` chooses.
3. The task sends what the backup lacks; small appends share a call with those of other logs.
4. The acknowledged length goes into `replica`; `views` says up to where all replicas have it.
5. When a backup dies, `segment` makes the replica again elsewhere, an open one in a higher epoch.

`traffic` is shared by all logs of a server: appends that share calls (`shared_appends`), and lost
replicas that are made again in turns (`rereplication`).

`side_segments` holds survivors before they join the log, and their parents until these may be
freed. `repair` compares each backup's inventory (`inventories`) with the log. `copyset_moves`
regroups replicas; `inherited_replicas` keeps those of a split tablet's log; both read images by
`replica_images`.

Read first: `segment`. Also searched for as: write-ahead log, chunk replica, copyset, scrub.
"""
