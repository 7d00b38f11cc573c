"""How jobs go from site to site, which locations take those that come to a site, and why the others wait.

Which sites a job may come to, and in which order, is ``scheduling/matching``; what is launched is decided in
``scheduling/provisioning``.
"""
