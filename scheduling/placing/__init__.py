"""How the jobs that come to a site get to its locations, and why the others wait.

Which sites a job comes to, and in which order, is ``scheduling/matching``; what is launched is decided in
``scheduling/provisioning``.
"""
