"""PBS Pro and TORQUE: their commands, their output, their messages. Pure; nothing runs here."""
