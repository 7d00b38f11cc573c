"""PBS Pro and TORQUE: options and commands (``pbspro``, ``torque``), and parsers of their output (``output``). Pure."""
