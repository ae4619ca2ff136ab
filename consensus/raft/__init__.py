"""One replica of a Raft group as a pure state machine.

Term and vote never go back, and a replica gives one vote in a term. A leader never cuts its own
log. What is committed never changes. Between `take_ready` and `advance` no event is taken. Members
change one server at a time; new ones enter as non-voters.

1. `raft` takes a proposal, and appends it to the leader's `log_view`.
2. `leader` sends it to the others, as fast as `progress` allows each; `ready` carries the effects.
3. A `follower` checks that the logs match, takes the entries in, and answers once they are durable.
4. `quorum` finds what a majority has; `leader` commits up to there, in its own term only.
5. The next `Ready` names the committed entries, and the caller applies them.

`election` says when to ask for votes and when to withhold them. `membership` says when members may
change. `tombstone` is what is left of a deleted replica: it votes. `messages` go over the wire.
`settings` are in ticks; `status` is what can be seen from outside.

Read first: `raft`. Also searched for as: pre-vote, leader lease, ReadIndex, learner.
"""
