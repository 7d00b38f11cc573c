"""The command ``lading``, which plans, simulates and prints job scripts without launching or submitting anything.

It imports Airflow only if the options name a site or a Dag.
"""
