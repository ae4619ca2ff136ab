"""Tables as all rooms know them: schema, partitions, durability, indexes."""
