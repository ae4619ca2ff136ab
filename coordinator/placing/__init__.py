"""Where new tablets and indexlets go."""
