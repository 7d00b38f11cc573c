"""How one of several controllers leads, and shows that it lives: its lease, and the mark of the job for which it waits.

What it decides is not known here.
"""
