"""The controller: the one process that decides where jobs run, and has them started and ended there.

It reaches sites through their interface alone.
"""
