"""Pure decisions: which jobs run where, and which machines to launch and release.

Nothing here imports Airflow, does I/O (except for reading the bundled price snapshot) or asks for the time.
"""
