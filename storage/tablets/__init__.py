"""A tablet in memory, and the state machine of a replicated one."""
