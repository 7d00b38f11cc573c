"""Gangs: jobs that start together or not at all, and what happens when they cannot. Pure.

What is held for them at sites is kept by ``executors/gangs``; where a job alone goes is decided in
``scheduling/placing``.
"""
