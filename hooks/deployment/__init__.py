"""The deployment that Lading works for: the configuration and connections that sites need.

The default is Airflow's (`airflow`); another workflow engine supplies its own.
"""
