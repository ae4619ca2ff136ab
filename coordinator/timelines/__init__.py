"""Tablets with ``wal(n, …)``: on which safekeepers their timelines lie."""
