"""How calls reach tablets and masters: locations, retries, and calls that share messages."""
