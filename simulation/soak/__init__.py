"""Explores fresh seeds of all scenarios for hours: ``python -m stelae.simulation soak``.

Scenarios get equal shares of the wall time. Seeds are derived from a base that the results name, so
a soak can be repeated. Figures are on disk while it runs. No tracked file changes unless ``--keep``
asks for it.

1. `explore` takes the next seed of the scenario with the least time spent.
2. `workers` runs it in a worker process, and replaces a worker that dies, hangs or has grown.
3. `explore` takes the result: a failure is noted, and the soak goes on.
4. `report` replaces the JSON file; `display` shows the progress.
5. At the end, `report` prints the table of scenarios and failing seeds.

Read first: `explore`. Also searched for as: fuzzing, swarm testing, nightly, seed search.
"""
