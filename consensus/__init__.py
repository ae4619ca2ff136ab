"""Protocol cores without I/O: they take an event and say what to persist, send and apply."""
