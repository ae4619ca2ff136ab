"""``stelae demo``: the main job on real data, with servers killed under load."""
