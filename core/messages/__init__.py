"""What servers and clients say to each other, by who is asked."""
