"""``cluster.yaml``: its models, and what is wrong with one."""
