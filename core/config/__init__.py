"""What a cluster should be: ``cluster.yaml``, and the settings that servers run with.

A `ClusterSpec` is valid when it exists: each field is checked by itself and against the others.
Attributes carry their unit. No URL that passes has a password in it.

1. `spec_file` reads the YAML into nodes, so that every field knows its line.
2. `units` reads sizes and durations as people write them; `store_url` checks URLs of stores.
3. `spec` checks all of it, and makes the `ClusterSpec`.
4. `spec_file` says all that is wrong at once: file, line and field.
5. `settings` is the frozen value that servers get; the simulator draws tiny ones.

Read first: `spec`. Also searched for as: configuration file, YAML, pydantic, flags, defaults.
"""
