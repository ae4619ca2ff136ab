"""Entries of a tablet's log, and the results of requests that clients may ask for again.

The certificate of a log (its length, a running CRC-32C over entry headers) is the commit point:
nothing past the last one exists. Versions rise in log order. A result is recorded when its write is
applied, and travels in the same entry; it is kept until its client has the answer or has expired.

- `entry`: encodes entries and prologues, extends the certificate, and reads a log back.
- `outcomes`: the result of one request as bytes: done, or refused with an error.
- `client_results`: the results by request id; what is kept, for how long, and what is refused.
- `timeline_tail`: cuts the entries of a timeline into the segments of a tablet's log.

Read first: `entry`. Also searched for as: log record, checksum, RIFL, idempotency key.
"""
