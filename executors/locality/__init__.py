"""What policies know beside jobs and machines: where jobs are and were.

What becomes of that is decided in ``scheduling/placing``.
"""
