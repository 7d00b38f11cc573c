"""The way from compute nodes through a login node to Airflow's execution API.

It carries requests and keeps others out; it knows neither jobs nor batch systems.
"""
