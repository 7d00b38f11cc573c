"""The expected starts of waiting jobs, from the store."""
