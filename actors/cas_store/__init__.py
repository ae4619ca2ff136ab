"""The configuration store: compares and swaps the configurations of timelines.

A swap is one atomic step, durable when it returns. A key has one row for each revision, and no row
is ever changed or removed. A repeated swap is recognized by its writer, nonce and value.

- `server`: the server in front of a backend, and the client side that masters use to reach it.
- `catalog`: the default store, without a server: the masters' own catalog.
- `backends`: the interface of a backend; `opening` opens one by its URL.
- `sqlite`, `postgres`: the backends in production; several servers may share one PostgreSQL.
- `files`: a backend on the runtime's disk, which the simulator uses.

Read first: `backends`. Also searched for as: compare-and-swap, metadata store, storage controller.
"""
