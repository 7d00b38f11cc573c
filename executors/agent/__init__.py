"""The node agent: it starts jobs on its machine, enforces their limits and reports how they ended.

``batch_job`` does the same for a single batch job. Nothing here uses a database; all input comes from a folder.
"""
