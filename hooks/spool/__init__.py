"""The folder that controls a node agent, and the events that come out of it.

Starting the agent, and bringing the folder to its machine, is up to other packages.
"""
