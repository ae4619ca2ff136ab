"""The status page: one document from the status of a cluster. Pure."""
