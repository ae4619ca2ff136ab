"""Launches, masters, moves and drains: what operators wait for.

Read first: `launching`. Also searched for as: catalog, DDL, drain, idle cost.
"""
