"""The ground: files of this machine and their names, models of what others write, and what processes here share.

Nothing here imports Airflow or reaches a site.
"""
