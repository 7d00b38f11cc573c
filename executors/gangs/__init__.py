"""Gangs as the controller keeps them: the states of their members and of what is held for them, and what follows.

The pass itself is pure and lives in ``scheduling/gangs``; the rows are in ``executors/store/gangs``.
"""
