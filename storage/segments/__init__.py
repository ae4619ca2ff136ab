"""Segments and what is done with them: images, the index over them, merge, cleaning, rows far
away."""
