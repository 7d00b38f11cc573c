"""The sites of a controller together: which answer, whether there is anything to decide, how all are let go of.

What is asked of one of them happens in its own thread (``site_thread``), and what follows is decided elsewhere.
"""
