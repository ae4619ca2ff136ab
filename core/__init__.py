"""What all folders share: ids, errors, schemas, messages, records, and the `Runtime` protocol.

It imports nothing else of `stelae`. An error's family says what the caller should do. A server
takes time, chance, network, disk and ids from its `Runtime` only.

- `schema`: tables as users define them: columns, partitioning, durability, indexes.
- `messages`: every message on the wire, by who is asked.
- `records`: what the catalog and the servers keep on record.
- `config`: ``cluster.yaml`` and the settings of servers.

`runtime` is what a server may ask of the world; `rpc` types a method; `errors` and `ids` are used
everywhere. `places` says what servers fail together. `tasks`, `together` and `deadlines` serve
event loops; `backoff` spaces repeated calls; `buffers` and `memory` large data; `current`,
`tracing` and `metric_catalogue` observation.

Read first: `runtime`. Also searched for as: common, RPC, dependency injection, error codes.
"""
