"""The ground: files that are written whole or read with care, permissions, and facts of this host.

Nothing here imports Airflow or reaches a site.
"""
