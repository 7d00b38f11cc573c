"""The checks of ``airflow lading check`` on a cluster, which find faults before a task does.

Nothing here changes anything on the cluster, except for the trial job.
"""
