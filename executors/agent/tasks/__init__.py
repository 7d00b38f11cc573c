"""Runners: how workloads of Airflow, commands and probes run in a job's process.

The agent imports a runner once, and knows nothing about its workloads.
"""
