"""The controller: the one process that decides where jobs run and sees to it that they do.

It reaches sites through their interface alone.
"""
