"""Copies a replica of a tablet with ``replicas(n)`` from one tserver to another.

Nothing of a copy counts before its last step replaces the superblock. Term, vote and last OpId stay
and go on voting while a tablet is copied; a copy that is given up leaves a tombstone. A copy that
does not reach the last OpId of the tombstone is not finished. All checks come before the deletion
of the replica that a copy replaces.

1. A leader's replica says that a member needs a copy; `starter` orders that member to make one.
2. `receiver` checks the order, and opens a `session`; `source` pins images and log entries.
3. `receiver` deletes its own replica if that ends before the source's snapshot, and begins.
4. `session` fetches and checks the pieces; `receiver_files` writes images, then the log.
5. `receiver_files` finishes the copy; the replica starts, and catches up by Raft.

`service` joins the three parts on one server; `host` is what they ask of its replicas.

Read first: `receiver`. Also searched for as: remote bootstrap, snapshot transfer, learner.
"""
