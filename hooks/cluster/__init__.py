"""A batch cluster as a site of the executor: each task is a batch job, or one of many in an allocation.

What a batch system's commands look like is known to ``lading.hooks.batch`` alone.
"""
