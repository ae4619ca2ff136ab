"""The client over HTTP: the same tables, from outside the cluster."""
