"""Protocol cores without I/O: an event goes in, and what to persist, send and apply comes out.

A core has no clock, and draws chance only from a generator that it is given. It tolerates messages
that are lost, doubled or reordered. It hands out its effects in one batch, whose order the caller
must keep: make durable, then send, then apply. Term and vote never go back, and a majority decides
each election and each commit.

- `raft`: one replica of a Raft group, for the masters and for tablets with ``replicas(n)``.
- `wal`: proposer and acceptor of a timeline, the log of a tablet with ``wal(n)``.

Read first: `raft`. Also searched for as: state machine, sans-I/O, etcd raft, Paxos, walproposer.
"""
