"""How Lading plugs into Airflow, and how third parties plug into Lading.

This package neither decides nor stores anything.
"""
