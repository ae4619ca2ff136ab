"""The routes of the HTTP API, by what they are about.

An order of an operator is in the masters' catalog when it is answered, and goes on by itself; one
that is refused has changed nothing. Each route checks the role of the token: read, write or admin.

- `tables`: tables made, shown, altered and deleted.
- `rows`: rows by key; `row_keys`: which row a request names; `row_parameters`: their parameters;
  `row_shortcut`: the way past routing.
- `conditional_rows`: writes under conditions on a row; `row_streams`: Arrow streams of any length.
- `scans`: rows as a stream; `finds`: indexes, and rows by the value of an indexed column.
- `operators`, `losses`: the check, moves and retirements; data that no live backup holds.
- `servers`: servers that are stopped, started, restarted, retired and replaced, in the background.
- `safekeepers`: safekeepers and timelines.
- `cluster_spec`: the cluster's spec, applied in the background; `tokens`: access tokens.

Read first: `rows`. Also searched for as: endpoints, handlers, REST resources, controllers.
"""
