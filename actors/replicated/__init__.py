"""Tablets with ``replicas(n)``: state machines over Raft, their files, and copies of them."""
