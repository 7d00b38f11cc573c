"""Hints: the requirements of a task as its Dag author states them, and what retries learn. Pure.

Nothing here depends on where the task runs.
"""
