"""The files of tablets with ``replicas(n)`` on a tserver's disk, and each change of what it has.

Each transition has one commit point, the replacement of the superblock. One transition of a tablet
runs at a time, and is carried through if its caller is cancelled. Term and vote never fall. A
tombstone's last OpId is forgotten only when a copy has reached it.

1. `store` creates a replica: first its consensus metadata, then its superblock.
2. A flush writes images, then `store` replaces the superblock that names them.
3. A deletion makes the superblock a tombstone; the files go into quarantine.
4. `quarantine` lists, purges and expires those files; `quarantine_limits` keeps them bounded.
5. At the next start `startup` carries on or undoes what a crash interrupted.

`files` knows the paths and formats, and makes each write durable.

Read first: `store`. Also searched for as: superblock, manifest, data directory, consensus metadata.
"""
