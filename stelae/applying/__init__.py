"""``stelae apply``: from what is to what is wanted, step by step, whoever was interrupted where."""
