"""The protocol of timelines, pure: a proposer at the tablet's owner, an acceptor at each member.

Term and generation never go back. To be elected and to commit need a majority of each member set of
the configuration. What is committed never changes. A session's messages are taken once and in
order; any loss ends the session, and the proposer greets again.

1. `proposer` greets the safekeepers, and campaigns with a term above all that it has heard of.
2. `campaign` decides from the best vote with which log it goes on; `history` finds where logs part.
3. As a `leader` it appends a proposal to its `log`, and streams it over a `link` to each member.
4. `acceptor` takes it in through `sessions`, and answers once the entry is durable.
5. `leader` commits what majorities have in its term; a higher term or configuration ends that.

`messages` go over the wire; `ready` holds the effects of a proposer.

Read first: `proposer`. Also searched for as: Neon, safekeeper, walproposer, Paxos, joint consensus.
"""
