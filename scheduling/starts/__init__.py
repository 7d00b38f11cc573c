"""When a waiting job starts: the rule by which locations start jobs, and the start that users see."""
