"""What policies know beside jobs and machines: where jobs are and were, where files are, and how they come to jobs.

The decisions on it are in ``scheduling/placing``.
"""
