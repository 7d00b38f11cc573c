"""Batch systems: translate requests into their commands, and the output of these commands into jobs.

Nothing in this folder runs a command. Each family of batch systems has a sub-folder.
"""
