"""The commands under ``airflow lading``: their arguments (``cli``), and what they do, a module for each.

Every ``airflow`` command loads the arguments, and the module of a command only when it is called.
"""
