"""What Stelae is compared with, in the same run and on the same machine.

Read first: `etcd`. Also searched for as: PostgreSQL, competitors, baselines.
"""
