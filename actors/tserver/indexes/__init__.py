"""Secondary indexes: what a tablet does for them, and the indexlets that hold the entries.

An index may have too many entries, never too few: entries are put in before the row is written, and
taken out after it. Entries are in memory only; a lost indexlet is filled again from the tablets.
Stamps, not the order of messages, say which insertion or removal is newer.

1. `writes` registers a write's entries as pending; `routes` puts new ones into the indexlets.
2. An `indexlet` takes them, forwards them to its successors (`indexlet_hand_over`), and answers.
3. The tablet writes the row; `writes` notes which entries have become superfluous.
4. `removals` takes them out in the background, once the write is durable.
5. A new indexlet asks every tablet for its entries (`indexlet_fill`, answered by `fill_answers`).

`indexed_tablet` is the tablet's part of it. `indexlets` takes the masters' orders for all indexlets
of the server. `indexlet_offers` takes entries from recovery jobs. `lineage` knows which tablets
were split. `entry_streams` checks entries from the network.

Read first: `writes`. Also searched for as: SLIK, index backfill, global secondary index, posting.
"""
