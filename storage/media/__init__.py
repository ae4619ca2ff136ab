"""What a backup has: media, frames, replicas, and what it accepts of which log."""
