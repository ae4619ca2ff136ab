"""The catalog: the state machine behind the masters' log, and its parts."""
