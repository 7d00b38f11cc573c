"""Real services that the tests start on this machine's loopback addresses, in folders of their own, and stop by pid."""
