"""What of a machine further jobs may have: its scratch space, and the room that is held for those that are to come.

What runs there, and what starts next, is known elsewhere.
"""
