"""Machines on which a node agent runs jobs: the one of the controller.

Which jobs these are is decided elsewhere.
"""
