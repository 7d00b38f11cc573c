"""EC2 instances: their launch, their jobs by node agent, their termination, and the account of their cost.

What to launch and terminate is decided elsewhere; how jobs run on a machine is in the package ``machines``.
"""
