"""Hints: what a Dag author says that a task needs, and what retries learn. Pure.

Who runs the task is not known here.
"""
