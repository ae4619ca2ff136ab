"""What every room of Stelae shares: ids, schemas, errors, messages and the Runtime protocol."""
