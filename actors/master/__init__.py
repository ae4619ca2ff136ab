"""The master, and the coordinator that the leader among them is."""
