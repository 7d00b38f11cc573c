"""A batch cluster as a site of the executor: each task is a batch job, or one of many in an allocation.

Only ``lading.hooks.batch`` knows the commands of batch systems.
"""
