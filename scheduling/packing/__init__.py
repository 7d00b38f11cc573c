"""Packing: which jobs go together on which machines, at what price. Pure.

Names, clocks and queues are not known here.
"""
