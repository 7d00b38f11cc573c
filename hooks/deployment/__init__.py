"""The deployment that Lading works for: its configuration and its connections, as sites need them.

Airflow's is the default (`airflow`); what runs workflows instead of it names its own.
"""
