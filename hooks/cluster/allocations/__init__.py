"""Allocations: batch jobs of a cluster in each of which a node agent runs many tasks.

``lading.hooks.cluster.jobs`` submits and tracks a single batch job.
"""
