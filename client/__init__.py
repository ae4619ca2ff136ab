"""What talks to the servers: the leader of the masters, cached tablet locations, retries."""
