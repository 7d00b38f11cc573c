"""Job scripts on batch clusters whose nodes need neither Airflow nor Lading: submitted from a notebook or from a task.

The executor does not run its own jobs through this package.
"""
