"""The plan of a recovery, and the merge of summaries by Spark.

A plan is the whole log or an error that names what is missing, never a shorter log. A merge does
not depend on order: versions decide. What a Spark task does may be done twice; a result of an
earlier term is refused. Without Java or Spark everything but the Spark engine works.

1. `plan` finds the segments of a log by what fenced backups hold; `inherited` does so for a part.
2. `losses` says of an incomplete log what is missing, and what could be kept.
3. `engine` chooses who merges: the new owners, or one Spark job, whichever is predicted faster.
4. Tasks of `spark_job` read summaries (`spark_log`, `near_replicas`) and hand merges to owners.
5. `spark_indexes` fills lost indexlets from the same rows.

`spark_session`, `spark_daemon`, `spark_warmth` and `java` start a session and keep it warm.
`spark_link` connects a process to a cluster; `spark_tables` reads and writes tables in tasks.

Read first: `plan`. Also searched for as: crash recovery, log replay, RAMCloud, partitioned replay.
"""
