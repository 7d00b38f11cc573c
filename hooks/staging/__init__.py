"""Files on their way to the jobs that read them: from where each is read, and how it gets into a staging area.

Which file is brought where, and for how long it is kept, is decided in ``lading.executors.locality``.
"""
