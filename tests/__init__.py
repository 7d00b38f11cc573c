"""Tests, the services that they start, and the demo that shares them."""
