"""Gangs: jobs that start together or not at all, and what happens if they cannot. Pure.

``executors/gangs`` keeps the room that sites hold for them; ``scheduling/placing`` decides where a single job goes.
"""
