"""SLURM: its commands, its output, its messages. Pure; nothing runs here."""
