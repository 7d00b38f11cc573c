"""The outside world: the kinds of sites, each behind one bulk interface."""
