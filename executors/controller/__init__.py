"""The controller: the one process that decides where jobs run, and has sites start and cancel them.

It talks to sites only through the interface in :mod:`lading.hooks.site`.
"""
