"""The deterministic world: nodes with disks on a network, whose processes start, crash and hang.

Time is virtual, and moves only when nothing is ready. Every choice is drawn from the seed. A dead
process never runs again. Any error that the world did not inject ends the run. The world imports
`stelae.core` alone: what runs in it comes as factories.

1. `world` makes a `node` for each server, and starts its `process` with a runtime (`instance`).
   `machines` says which of them lose their power together.
2. `loop` picks the next ready callback by the seed, or moves the time to the next timer.
3. `network` loses, delays, doubles and reorders calls, as drawn by `options`.
4. `disk` keeps what is durable apart from what a crash may drop or tear (`content`).
5. `story` notes what happened; its digest compares two runs.

`objects` and `near_files` stand for shared memory and files of neighbours, `arrivals` for requests
that arrive together, `server_logs` for logs.

Read first: `world`. Also searched for as: deterministic simulation, virtual time, event loop, DST.
"""
