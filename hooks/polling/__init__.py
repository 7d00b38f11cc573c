"""Polling of a site: its thread, when the next look is due, the phase of each of its jobs, and events that are not
stored yet. The content of the requests is defined elsewhere.
"""
