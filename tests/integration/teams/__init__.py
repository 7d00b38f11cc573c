"""Tests with an Airflow that has teams, which ends with them."""
