"""What the Dag beside it imports."""

WORDS = "read from the bundle"
