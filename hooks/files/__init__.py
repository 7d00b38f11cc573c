"""Lowest layer: files and file names on this machine, models of data that others write, and what local processes share.

Nothing in this package imports Airflow or connects to a site.
"""
