"""A tablet with one owner: reads, writes, the way back after a recovery, and its successors."""
