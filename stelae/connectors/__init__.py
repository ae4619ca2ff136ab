"""What runs inside Spark, Ray Data and Feast for `stelae.spark`, `stelae.data` and `stelae.feast`.

Tasks connect to the servers themselves. A task may run again, at any time and anywhere: its pieces
carry request ids, so that the same rows are written once. A filter is taken over only where it
means the same on both sides.

1. `link` says which cluster is meant, and what a task needs to reach it.
2. A table is pinned; a task reads one share of it (`spark_tasks`, `data_tasks`).
3. `spark_filters` and `data_filters` turn predicates into filters of scans.
4. A writing task sends windows of rows, each under an id made of write, task and rows.
5. `spark_streams` notes which batches of a stream are in a table.

`spark_helper` serves Spark's JVMs, `spark_jar` makes the jar behind ``format("stelae")``.
`spark_daemon` keeps Python workers loaded, `spark_holds` keeps pins of DataFrames. `feast_tables`
and `feast_rows` are the online store.

Read first: `link`. Also searched for as: data source, DataFrame, Structured Streaming.
"""
