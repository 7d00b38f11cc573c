"""What ``airflow lading check`` finds out about a cluster, before a task does.

Nothing here changes anything at the cluster, but for the trial job.
"""
