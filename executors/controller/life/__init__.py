"""How a controller lives: its process, and the lease by which one of several leads.

What it decides is not known here.
"""
