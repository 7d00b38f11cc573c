"""Parse the XML that TORQUE and SGE print: surrounded by other lines, and not always well-formed."""

from __future__ import annotations

import re
from xml.etree import ElementTree

# Characters that XML forbids, an & that starts no entity, and a < that starts no tag: qstat prints all of them as they
# are in the name of a job.
_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_AMPERSAND = re.compile(r"&(?!(?:amp|lt|gt|quot|apos|#\d+|#x[0-9A-Fa-f]+);)")
_LESS = re.compile(r"<(?!/?[A-Za-z_][\w.-]*(?:\s[^<>]*)?/?>|\?xml|!--)")


def parse(text: str) -> ElementTree.Element:
    """Return the root of one document.

    :raises ValueError: it is truncated, or not XML
    """
    mended = _LESS.sub("&lt;", _AMPERSAND.sub("&amp;", _FORBIDDEN.sub("?", text)))
    try:
        return ElementTree.fromstring(mended)
    except ElementTree.ParseError as error:
        raise ValueError(f"not a complete XML document: {error}") from None


def text_of(element: ElementTree.Element, tag: str) -> str:
    """Return the text of a child element; empty if it is missing."""
    return (element.findtext(tag) or "").strip()
