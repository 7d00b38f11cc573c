"""How Lading plugs into Airflow, and how others plug into Lading.

Nothing is decided or kept here.
"""
