"""Machines of EC2: launched, filled by their node agents and released again; each is accounted for until its end.

What is launched and released is decided elsewhere; how jobs run on a machine is the room ``machines``.
"""
