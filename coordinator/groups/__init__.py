"""Tablets with ``replicas(n)``: health, healing, and how evenly they lie."""
