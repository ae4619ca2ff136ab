"""What operators ask of a cluster."""
