"""Rows, keys and cells: how they are checked, encoded, hashed, filtered and shown."""
