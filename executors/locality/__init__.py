"""What policies know beside jobs and machines: where jobs are and were, where files are, and how they come to jobs.

What becomes of that is decided in ``scheduling/placing``.
"""
