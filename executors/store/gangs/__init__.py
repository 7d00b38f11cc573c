"""Gangs in the store: their rows, and those of the room that is held for them at sites.

What follows from the rows is decided in ``executors/gangs``; nothing is committed here.
"""
