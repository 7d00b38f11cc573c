"""Machines on which a node agent runs jobs: the one of the controller.

Machines that come and go are none of this room's.
"""
