"""How long users wait when servers die, and what a recovery costs.

Read first: `recovering`. Also searched for as: recovery, failover, restart, cold start.
"""
