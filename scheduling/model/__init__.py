"""The nouns of every decision: jobs, locations, instance types, plans, resources and reasons."""
