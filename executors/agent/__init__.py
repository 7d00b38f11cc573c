"""The node agent: it starts jobs on its machine, enforces their limits and reports how they have ended.

``batch_job`` does the same for one batch job. Nothing here has a database; all its input lies in a folder.
"""
