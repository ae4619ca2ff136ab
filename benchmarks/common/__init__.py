"""What all benchmarks use: clusters, rows, loads, processes of single servers, figures.

Read first: `figures`. Also searched for as: harness, fixtures, load generators.
"""
