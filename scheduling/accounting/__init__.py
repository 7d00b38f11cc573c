"""Shares, budgets and bills: who may use how much, who used it, and what it cost."""
