"""The outside world: sites, and all ways by which jobs, files and answers come and go.

What is to run where is decided above, never here.
"""
