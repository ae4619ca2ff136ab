"""The state machine of a tablet with ``replicas(n)``: what every replica executes in the same way.

Only commands of the log decide: no clock, chance or setting of one server, and not how rows are
held. Nothing is executed before it is committed. The manifest is the commit point of a flush.
Fields of commands are only ever appended.

1. The leader encodes a client's request with the group's time as one of the `commands`.
2. `state_machine` executes each committed command, and returns its outcome.
3. A flush closes the head and notes that moment (`state_machine`, `flush`).
4. Images are built off the event loop; survivors may take the place of neighbouring ones.
5. `manifest` names all images and what is not rows; it goes into the superblock.

`checksum` sums up all rows, the same on every replica however it holds them.

Read first: `state_machine`. Also searched for as: deterministic apply, snapshot, checkpoint, scrub.
"""
