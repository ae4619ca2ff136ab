"""Formats of small files and of logs on disk, told from damage. Pure codecs."""
