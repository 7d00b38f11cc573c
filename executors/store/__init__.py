"""Lading's tables in Airflow's database, and the queries on them.

What follows from the rows is decided elsewhere.
"""
