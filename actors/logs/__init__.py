"""Logs of tablets: segments on backups, timelines on safekeepers, and their replicas."""
