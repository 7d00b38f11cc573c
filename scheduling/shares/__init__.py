"""Who gets how much where more is wanted than there is."""
