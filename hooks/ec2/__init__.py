"""Machines of EC2: launched, filled by their node agents and given up again; none of them is ever lost sight of.

What is launched and what is given up is decided elsewhere; how jobs run on a machine is the room ``machines``.
"""
