"""What jobs need that depends on their inputs or on their earlier tries, found out beside the controller's loop.

Where a job runs is no concern of this room, and it asks no site.
"""
