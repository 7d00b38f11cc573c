"""Shares, budgets, bills and used amounts in the store."""
