"""Batch systems: their commands and what these print, translated both ways.

Nothing here runs a command; each family has a folder of its own.
"""
