"""The backup server: stores segment replicas, fences former owners, and serves recoveries.

A write is durable before it is answered; on a memory medium it lasts as long as the process. A
replica exists up to its certificate and no further. One change of a segment is made at a time. A
fenced term is durable before it is answered, and only rises.

1. `replica_writes` takes an append; `fences` refuses the terms and heads that are over.
2. `replicas` plans the write: a gap, a lower epoch or a wrong certificate is refused.
3. A medium (`media`; `disk_medium` over `frames`) writes the bytes, then the record, in one sync.
4. `holdings` knows the replica from then on; a seal replaces row form by an image in one step.
5. A recovery fences the logs, lists what is held (`server`), and reads rows through `served`.

After a restart `disk_opening` finds the replicas by their records. `shared_writes` takes writes of
several replicas in one message. `served_picks` and `served_columns` serve parts of split tablets,
and indexes. `blobs` holds files of evicted timelines. `closing` says when a backup that is to be
retired takes nothing more.

Read first: `server`. Also searched for as: bookie, segment replica, group commit, torn write, WAL.
"""
