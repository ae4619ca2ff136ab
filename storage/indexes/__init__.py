"""Secondary indexes in memory: entries whose bytes have the order of their values, in sorted
runs."""
