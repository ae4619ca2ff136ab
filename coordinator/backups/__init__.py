"""What the leader thinks of backups: their groups, how they leave, what is lost with them."""
