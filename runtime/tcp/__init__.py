"""Calls between servers over TCP: many at a time on one connection for each address.

Nothing is parsed before the handshake has proved the other end, but messages of fixed size. A frame
reaches its owner only whole, after its checksums held. `Unavailable`, `Overloaded` and `TooLarge`
mean that the request was definitely not sent. A call is settled once, by its deadline at the
latest.

1. `peers` finds or makes the connection; `handshake` proves both ends by the cluster's secret.
2. `outbound` waits for room (`backpressure`), numbers the call, and keeps its deadline.
3. `connection` writes the small `frames` of a turn at once, and large messages in parts.
4. `server` checks the request, runs the handler, and sends its answer.
5. `reader` puts large messages together; `outbound` settles the call with the answer.

`door` accepts connections where there is TLS, and `tls` has the contexts of both ends and their
renewal; the handshake is inside. `direct` makes one call at a time from the caller's own thread.
`local` is the shorter way between processes of one machine. `limits` has all bounds.

Read first: `peers`. Also searched for as: RPC, framing, multiplexing, HMAC, mTLS, flow control,
gRPC.
"""
