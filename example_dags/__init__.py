"""Example Dags, ready to run."""
