"""What the leader should do now: pure functions of what is and what is known."""
