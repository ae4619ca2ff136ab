"""``stelae check``: facts are gathered, then judged."""
