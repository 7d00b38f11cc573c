"""Resource requests that depend on a job's inputs or earlier tries, computed outside the controller's loop.

Sizing narrows where a job can run, but it places no jobs and contacts no site.
"""
