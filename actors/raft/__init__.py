"""Replicas of Raft groups on a server: the shell around `stelae.consensus.raft.raft`."""
