"""What a finished run shows: the phases of its tries, and the tries that determined its length."""
