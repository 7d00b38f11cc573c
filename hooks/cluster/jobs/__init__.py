"""Batch jobs of a cluster: their scripts, submission and tracking, and how each of them ended.

Both modes of a site build on this: tasks that are batch jobs (``job_mode``), and allocations.
"""
