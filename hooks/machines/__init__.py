"""Machines on which a node agent runs jobs: the one of the controller, and those behind SSH.

Which jobs these are is decided elsewhere.
"""
