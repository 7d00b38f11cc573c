"""What the commands under ``airflow lading`` do, a module for each, and what they share to read and to print.

Their arguments are not here: :mod:`lading.plugin.cli` has them, which every ``airflow`` command loads.
"""
