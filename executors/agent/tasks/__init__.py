"""How a workload of Airflow's runs in a job's process.

The agent itself loads this once and knows none of it.
"""
