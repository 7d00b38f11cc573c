"""Airflow's Dag bundles as files: what is in them, and their way to a site.

No Dag is parsed here.
"""
