"""Tablets that leave a server by plan: which, where to, and how fast."""
