"""Brings the rows of a recovered tablet back from backups while the tablet is served.

Rows that were fetched are shown only after they were checked against the image whose summary was
merged. What is held for readers is bounded. A segment that no backup can serve is tried again for
as long as it takes; only the calls that need its rows wait.

1. A read or write finds that rows are absent, and asks `loader` for them.
2. `single_rows` fetches one row by itself; `pieces` fetches its neighbours, from any replica.
3. Where the image lies on this machine, `near_rows` and `near_columns` read it past the backup.
4. In the background `loader` loads whole segments in the order of the log, at a bounded rate.
5. `missing_rows` reports the segments that are on no live backup.

`spark_merge` waits for a merge of the summaries that Spark makes. `remote_columns` reads columns
for indexes that are filled. `picked_rows` fetches what a part of a split tablet inherits.

Read first: `loader`. Also searched for as: lazy loading, hydration, on-demand restore, warm-up.
"""
