"""The client over HTTP: the same databases and tables, from outside the cluster.

Rows travel as Arrow streams. Writes carry request ids, so they are repeated through lost answers
and applied once. Errors are those of `stelae.core.errors`, rebuilt from problem documents.

- `database`, `table`, `finds`: the calls of a database, of a table, and of its indexes.
- `table_calls`: requests about one table, whatever it is called by now.
- `transport`: a request with its token, deadline and repetition, and what the answer is.
- `direct`, `one_row`: a `get` of one row from the caller's thread, past the loop.
- `protocol`: media types, headers and request ids, shared with `stelae.serve`.
- `json_values`: values of every column type as JSON and back; nothing is rounded.
- `records`: descriptions of tables, made into records again.

Read first: `transport`. Also searched for as: REST client, problem details, RFC 9457, Arrow stream.
"""
