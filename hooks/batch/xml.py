"""Answers in XML, as TORQUE and SGE give them: with other lines around, and not always well formed."""

from __future__ import annotations

import re
from xml.etree import ElementTree

# Characters that XML does not have, an & that begins no entity, and a < that begins no tag, all as they are written
# by qstat where the name of a job has them.
_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_AMPERSAND = re.compile(r"&(?!(?:amp|lt|gt|quot|apos|#\d+|#x[0-9A-Fa-f]+);)")
_LESS = re.compile(r"<(?!/?[A-Za-z_][\w.-]*(?:\s[^<>]*)?/?>|\?xml|!--)")


def parse(text: str) -> ElementTree.Element:
    """The root of one document.

    :raises ValueError: it is cut, or no XML
    """
    mended = _LESS.sub("&lt;", _AMPERSAND.sub("&amp;", _FORBIDDEN.sub("?", text)))
    try:
        return ElementTree.fromstring(mended)
    except ElementTree.ParseError as error:
        raise ValueError(f"it is no whole XML: {error}") from None


def text_of(element: ElementTree.Element, tag: str) -> str:
    """The text of a child; empty where it has no such child."""
    return (element.findtext(tag) or "").strip()
