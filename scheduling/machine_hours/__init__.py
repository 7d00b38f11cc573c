"""Machine-hours: which machines to launch, and which to fill, so that the bill is least when the last job has ended.

Pure. How long jobs run is predicted; what they need together is :mod:`lading.scheduling.packing`'s matter.
"""
