"""Sites and the channels by which jobs, files and results reach them and come back.

These modules carry out decisions; which job runs where is decided in ``lading.scheduling`` and ``lading.executors``.
"""
