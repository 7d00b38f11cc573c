"""Machines on which a node agent runs jobs: the controller's own, and those behind SSH.

This package does not decide which jobs they run.
"""
