"""What the Dag next to it imports."""

WORDS = "read from the bundle"
