"""The implementation of ``scatter``: how one annotated task becomes many jobs, and their outputs one value again.

Dag authors need only ``lading.operators.scatter``.
"""
