"""The pure core: what to run where.

It imports neither Airflow nor any I/O, and has no clock.
"""
