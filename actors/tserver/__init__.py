"""The tablet server: what it hosts, when memory is cleaned, and its right to serve."""
