"""Sends commands and files to a site: the exchange, and the transports that carry it. The content of requests and the
meaning of answers are defined elsewhere.
"""
