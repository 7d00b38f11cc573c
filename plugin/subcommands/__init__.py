"""The commands under ``airflow lading``: ``cli`` defines their arguments, and each command has a module.

Every ``airflow`` command loads the arguments; the module of a command is loaded only when the command is called.
"""
