"""Logs as all rooms know them: positions, configurations, losses, successions."""
