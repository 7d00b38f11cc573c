"""Staging of input files for jobs: reading them from their source, and writing them to a staging area.

Which files to stage where, and how long to keep them, is decided in ``lading.executors.locality``.
"""
