"""A cluster as clients see it: databases and tables, reached straight at the servers or over HTTP.

Each tablet's part of a call is atomic and applied once; across tablets there is no transaction. A
call is repeated under the same request id until its end is known or its deadline has passed. What a
client knows of places (leader, owners, indexlets) is a hint, and servers refuse what is wrong.

- `table`: the calls on one table: writes, reads, scans, alters; async and blocking.
- `routing`: where a call goes, how it is repeated, and under which request id.
- `input`: what users hand in, checked and brought into one form.
- `finds`: rows by the value of an indexed column.
- `admin`: what operators ask: members, safekeepers, losses, quarantines, tokens, turns.
- `check`: ``stelae check``: facts are gathered, then judged.
- `http`: the same database and tables over the HTTP API.

`database` is the front of it, `database_api` what both ways share, `audit` the audit log, `aio` the
client's event loop.

Read first: `table`. Also searched for as: driver, SDK, retries, connection, exactly-once.
"""
