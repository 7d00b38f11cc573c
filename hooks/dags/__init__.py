"""Airflow's Dag bundles as files: what they contain, and how they get to a site. No Dag is parsed here."""
