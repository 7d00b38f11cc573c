"""Job scripts on batch clusters whose nodes need neither Airflow nor Lading: from a notebook, or from a task.

The executor's own jobs are never run here.
"""
