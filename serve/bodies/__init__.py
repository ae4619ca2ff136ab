"""Bodies of the HTTP API: their models, their checks, and what OpenAPI says of them.

Arrow streams are bounded and checked before anything in them is believed or unpacked. Each class of
`stelae.core.errors` has a problem type and a status that say what the caller should do.

- `models`: bodies about tables, rows and scans.
- `indexes`, `safekeepers`, `status`: bodies about indexes, safekeepers, and the cluster's state.
- `arrow`: Arrow streams from the network.
- `problems`: errors as problem documents, from which a client rebuilds the error.
- `openapi`, `examples`: what OpenAPI shows of bodies that routes read themselves; its examples.

Read first: `models`. Also searched for as: pydantic, schema, RFC 9457, problem details, validation.
"""
