"""What is kept, in memory and on disk, and nothing of how it gets there: no I/O of its own."""
