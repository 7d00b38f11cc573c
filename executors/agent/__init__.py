"""The node agent: it starts jobs on its machine, looks after them and says how they have ended.

``batch_job`` does the same for one batch job. Nothing here has a database; all that it is told lies in a folder.
"""
