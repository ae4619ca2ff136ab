"""Indexlets, and the tablets' part in keeping them true."""
