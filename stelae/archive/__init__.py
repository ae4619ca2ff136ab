"""Backups of tables in a folder or an object store: stored by difference, checked, restored."""
