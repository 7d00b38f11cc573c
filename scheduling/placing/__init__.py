"""How jobs pass from site to site, which locations take them, and why the others wait.

Which sites a job can go to, and in which order, is ``scheduling/matching``; what is launched is decided in
``scheduling/provisioning``.
"""
