"""The backup server: replicas of segments, and what it serves of them to recoveries."""
