"""What asks a site again and again: its thread, when the next look is due, how far each of its jobs has come, and what
was found and not yet stored. What is asked is not known here.
"""
