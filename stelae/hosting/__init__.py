"""Clusters on Ray: stood up, found, restarted, taken down."""
