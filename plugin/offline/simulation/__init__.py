"""Simulation: what a plan would have cost, and how long it would have taken, for traces of jobs.

Nothing is launched.
"""
