"""The connection from compute nodes through a login node to Airflow's execution API.

It forwards requests to that API and rejects all others; it knows nothing about jobs or batch systems.
"""
