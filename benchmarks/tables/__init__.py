"""Reads and writes of tables by all doors, and what their rows weigh.

Read first: `writes`. Also searched for as: throughput, latency, HTTP, Spark, Ray Data, indexes.
"""
