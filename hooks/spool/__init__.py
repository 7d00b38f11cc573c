"""The folder through which a node agent is driven, and the events that come out of it.

Who starts the agent, and how the folder gets to its machine, is not known here.
"""
