"""The orchestrator that creates the jobs: the interface that the engine needs (`orchestrator`), and Airflow's
implementation (`airflow`).

Apart from the executor and the task runner, only the modules whose names begin with `airflow` read Airflow's tables.
"""
