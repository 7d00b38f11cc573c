"""Matching: which sites can run a job at all, and why none can. Pure.

Whether there is room for it now is decided elsewhere.
"""
