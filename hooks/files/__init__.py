"""The ground: files that are written whole or read with care, permissions, and facts of this host.

Nothing here knows of sites, jobs or Airflow.
"""
