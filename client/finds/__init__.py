"""Rows by the value of an indexed column."""
