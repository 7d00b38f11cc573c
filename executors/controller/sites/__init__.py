"""The sites of a controller, all of them together: which of them answer, whether there is anything to decide, and ends.

What is asked of one of them happens in its own thread (``site_thread``), and what follows is decided elsewhere.
"""
