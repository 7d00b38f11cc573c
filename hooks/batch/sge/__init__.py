"""Grid Engine: options and commands (``system``), and parsers of their output (``output``). Pure."""
