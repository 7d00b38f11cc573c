"""Tests that share an Airflow with two executors, which ends with them."""
