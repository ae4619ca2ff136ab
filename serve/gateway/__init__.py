"""What every HTTP request passes before its route, and what all routes share.

A request without a token takes no slot, and its body is not read. What is refused here was
definitely not begun. A token file that others can read is refused. The first audit line of an
admin's call is on disk before anything is done.

1. `request_ids` gives the request its id, the caller's own if it is sane.
2. `guard` checks the token by `following`, which keeps the catalog's `tokens` fresh.
3. `guard` bounds requests and bodies in hand, in all and for each token; `arriving` unpacks bodies
   and holds them to a least rate; `audit` notes what only admins may do, and
   `audit_copier` brings it into a table (`audit_files`, `audit_rows`).
4. `requests` makes the request id of a write from key, token, table and content.
5. The route takes database, table handle and deadline from `gateway`.

`conditions` reads ``If-Match`` and ``If-None-Match``. `scan_tokens` signs the place of the next
page. `head` answers ``HEAD`` as ``GET``. `health` asks the masters for all who want to know.

Read first: `guard`. Also searched for as: middleware, authentication, Idempotency-Key, ETag.
"""
