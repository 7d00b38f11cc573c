"""Batch jobs of a cluster: their scripts, how they are submitted and followed, and how each has ended.

Both modes of a site are made of it: tasks that are batch jobs (``job_mode``), and allocations.
"""
