"""The pure core: what to run where. Imports neither Airflow nor any I/O."""
