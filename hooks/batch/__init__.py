"""Batch systems: their commands and what these print, translated both ways. Pure.

Nothing here runs a command, keeps state or knows of tasks; each family has a folder of its own.
"""
