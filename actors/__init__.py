"""The servers, plain async classes over a Runtime, and what hosts them on Ray."""
