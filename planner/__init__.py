"""What a cluster would do before it is there: times of recovery, space, risk. Knows `core` only."""
