"""What is left behind, and how it is removed by age: on clusters and on this machine.

What still belongs to a job is never touched.
"""
