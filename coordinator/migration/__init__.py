"""The migration of a timeline to other safekeepers, as a pure machine (seed 004)."""
