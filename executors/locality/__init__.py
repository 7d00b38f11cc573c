"""What policies know beside jobs and machines: where jobs are and were, and where files are.

What becomes of that is decided in ``scheduling/placing``.
"""
