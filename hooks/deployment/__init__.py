"""The deployment that Lading works for: the configuration and connections that sites need.

Airflow's is in `airflow`. A site has the deployment of its table (`SiteConfig.deployment`).
"""
