"""LSF and OpenLava: their commands, their output, their messages. Pure; nothing runs here."""
