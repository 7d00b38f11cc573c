"""Gangs in the controller: it follows their members and holds, and applies the decisions of the gang pass.

The pass itself is pure and lives in ``scheduling/gangs``; the rows are in ``executors/store/gangs``.
"""
