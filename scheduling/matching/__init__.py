"""Matching: which sites can run a job at all, and why none can. Pure.

Where there is room for it now is not known here.
"""
