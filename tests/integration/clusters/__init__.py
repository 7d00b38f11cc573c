"""Tests that share batch clusters, which end with them."""
