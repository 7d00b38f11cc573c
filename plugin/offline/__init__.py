"""The command ``lading``, which plans, simulates and writes scripts before anything is launched or submitted.

It imports Airflow only where a site or a Dag is asked for.
"""
