"""What jobs need that depends on their inputs or on their earlier tries, found out beside the controller's loop.

It narrows where a job may run, but places none, and it asks no site.
"""
