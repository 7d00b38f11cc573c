"""The pure core: what to run where.

It imports neither Airflow nor any I/O but for the price snapshot that comes with it, and has no clock.
"""
