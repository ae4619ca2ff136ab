"""What operations change in the catalog: on tables, indexes, servers, tokens and turns. Pure.

Each draft looks at the committed catalog, and returns the batch of one operation or raises why it
cannot be. An operator's request that was carried out before is not carried out again.

- `tables`: create and delete tables, replace tablets that could not be created.
- `alter`: one entry says what the table shall be; the leader then sees to each tablet.
- `succession`: another durability, tablet by tablet; `successor_rooms`: where there is memory.
- `indexes`: create and drop indexes; `index_records`: new indexlets and where they go.
- `operator_orders`: retire, maintain, move and spread.
- `losses`: the record of what is lost for good, and the tablets that go on without it.
- `tokens`, `turns`: access tokens, and whose turn it is to change the servers.

Read first: `tables`. Also searched for as: CREATE TABLE, ALTER TABLE, schema change, online DDL.
"""
