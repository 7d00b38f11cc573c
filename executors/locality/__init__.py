"""Where jobs ran and where their files are, as data for placement policies, and the staging of files to jobs.

The policies' decisions are in ``scheduling/placing``.
"""
