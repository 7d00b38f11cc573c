"""Shares: how machines and budgets are divided when jobs want more than is available."""
