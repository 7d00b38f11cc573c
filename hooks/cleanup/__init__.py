"""Finds and removes old leftovers on clusters and on this machine.

Files that belong to a live job are never touched.
"""
