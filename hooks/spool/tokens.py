"""Tokens: what identifies a try of a job everywhere; and JWTs, which are secrets and kept out of what people read."""

from __future__ import annotations

import re

# A token becomes a file name, so nothing else may reach the file system.
TOKEN = re.compile(r"[0-9A-Za-z-]{1,64}")

# A JWT, or the first part of one: it starts with a JSON object in Base64.
JWT = re.compile(r"eyJ[\w.-]*")


def checked(token: str) -> str:
    """The token, if it may be a file name.

    :raises ValueError: it may not
    """
    if not TOKEN.fullmatch(token):
        raise ValueError(f"{token!r} is no token: 1 to 64 letters, digits and dashes are expected")
    return token
