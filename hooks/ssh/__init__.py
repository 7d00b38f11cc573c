"""How commands and files reach a site: one exchange, and the transports that carry it.

What is asked and what answers mean is never known here.
"""
