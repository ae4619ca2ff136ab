"""How tables get another schema or another durability."""
