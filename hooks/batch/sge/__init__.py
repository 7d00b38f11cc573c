"""Grid Engine: the options and commands (``system``), and what these print (``output``). Pure."""
