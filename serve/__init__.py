"""(docstring to be written with the room)"""
