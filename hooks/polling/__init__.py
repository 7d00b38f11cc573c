"""What asks a site again and again: its thread, when the next look is due, and what was found and not yet stored.

What is asked, and what the answers mean, is not known here.
"""
