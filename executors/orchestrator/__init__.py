"""Who makes the jobs: what the engine needs of it (`orchestrator`), and Airflow, which is the default (`airflow`).

The modules whose names begin with `airflow` are the only ones beside the executor and the task runner that read
Airflow's tables.
"""
