"""Reads of many rows: scans, pages, and pinned snapshots."""
