"""The node agent: it starts jobs on its machine, looks after them and says how they have ended.

It has no database and no configuration; it knows what lies in its spool.
"""
