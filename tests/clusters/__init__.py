"""Doubles that several tests share: toy batch systems, and runners of jobs without Airflow."""
