"""Tablets with ``wal(n)``: on which safekeepers their timelines lie, and how members change. Pure.

A migration follows from the record in the store and the answers of safekeepers, never from what an
earlier driver did. It may be interrupted anywhere, and several drivers may run at once. Of one
generation there is one configuration. A change under way is finished or taken back, never replaced.

1. `duties` finds timelines to create, to move, to finish and to remove.
2. `safekeepers` chooses the new members, and finds members that are lost; `vain_members` those
   that never get the log, and remembers who was chosen in vain.
3. `migration_wish` judges what is wanted by the record that the store has now.
4. `migration` writes the joint configuration, has new members catch up, and then switches.
5. `migration_knowledge` says from the answers whether the conditions of a switch hold.

`migration_steps` has the words of it, `migration_calls` what is under way and its pauses.
`placement` registers safekeepers, and keeps the members of each timeline in the catalog.

Read first: `migration`. Also searched for as: joint consensus, reconfiguration, storage controller.
"""
