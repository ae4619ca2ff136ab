"""The configuration store (CAS store): a server, and where its rows are kept."""
