"""Allocations: batch jobs of a cluster in each of which a node agent runs many tasks.

How a single batch job is submitted and followed is the room's above.
"""
