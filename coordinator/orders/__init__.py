"""Operators' orders: what they change, and why they may be refused."""
