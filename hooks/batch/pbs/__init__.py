"""PBS Pro and TORQUE: the options and commands (``pbspro``, ``torque``), and what these print (``output``). Pure."""
