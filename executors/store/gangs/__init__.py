"""Gangs in the store: their rows, and the holds that sites keep for their members.

Decisions are made in ``executors/gangs``; nothing is committed here.
"""
