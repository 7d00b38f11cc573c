"""Tests that share one Airflow, which ends with them."""
