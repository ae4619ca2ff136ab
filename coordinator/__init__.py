"""What the leader master decides: catalog, who is alive, who owns which tablet, what to do next."""
