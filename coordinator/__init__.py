"""What the leader master decides: the catalog, who is alive, who owns which tablet, what to do next."""
