"""The loops over many rows: compiled ones, and plain ones that say what those must do."""
