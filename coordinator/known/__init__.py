"""What the leader knows besides the catalog: who is alive, and what servers hold."""
