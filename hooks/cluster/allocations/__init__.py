"""Allocations: batch jobs of a cluster, each with a node agent that runs many tasks.

``lading.hooks.cluster.jobs`` submits and tracks a single batch job.
"""
