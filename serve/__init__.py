"""The HTTP front: an application over a client's database, its status page, and its place in Ray
Serve."""
