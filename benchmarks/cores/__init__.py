"""Speeds of parts on one core or in one process: no cluster, and mostly no network.

Read first: `kernels`. Also searched for as: micro-benchmarks, codec, state machine.
"""
