"""Pack jobs onto machines: which jobs share a machine, and at what price.

Pure: packing knows no job names, clocks or queues.
"""
