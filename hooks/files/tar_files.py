"""What is in a tar that comes from a site, which may have made it to do harm."""

from __future__ import annotations

import io
import tarfile

# What stands in front of a file in a tar has its name, and little more, bytes.
MOST_HEADER_BYTES = 2**16
# The second names of files stand for so many bytes at most: each costs little on its way, and as much as the first to
# read.
MOST_LINKED_BYTES = 2**26


class _Member(tarfile.TarInfo):
    """A member of a tar that nobody has to trust."""

    def _proc_member(self, archive: tarfile.TarFile) -> tarfile.TarInfo:
        # Headers of their own kind speak for the next member, or for all: each member would keep a copy.
        extended = self.type not in tarfile.SUPPORTED_TYPES or self.type in (*tarfile.GNU_TYPES, tarfile.XHDTYPE)
        if self.type == tarfile.XGLTYPE or (extended and self.size > MOST_HEADER_BYTES and not self.isreg()):
            raise tarfile.ReadError("its headers are too large")
        return super()._proc_member(archive)  # type: ignore[misc, no-any-return]


def read(packed: bytes) -> dict[str, bytes]:
    """The files in a tar, by name.

    A site may send what it likes: a sparse file of two thousand bytes could grow to gigabytes here. So only plain files
    are read, no more of them than has come, and few second names of large ones.

    :raises ValueError: something else is in it, or too much
    """
    try:
        return _files(packed)
    except (tarfile.TarError, OSError, LookupError, OverflowError, EOFError) as error:
        raise ValueError(f"it is no tar, or damaged: {error}") from error


def _files(packed: bytes) -> dict[str, bytes]:
    contents: dict[str, bytes] = {}
    left, linked = len(packed), MOST_LINKED_BYTES
    with tarfile.open(fileobj=io.BytesIO(packed), mode="r:", ignore_zeros=True, tarinfo=_Member) as archive:
        for member in archive:
            name = member.name.removeprefix("./")
            if member.isdir():
                continue
            if member.islnk():  # the second name of a file that is in it already
                contents[name] = contents[member.linkname.removeprefix("./")]
                linked -= len(contents[name])
                if linked < 0:
                    raise ValueError(f"the second names of its files stand for more than {MOST_LINKED_BYTES} bytes")
                continue
            if not member.isreg() or member.issparse():
                raise ValueError(f"{name!r} is no plain file")
            if not 0 <= member.size <= left:
                raise ValueError(f"{name!r} has {member.size} bytes, and {left} have come")
            left -= member.size
            content = archive.extractfile(member)
            assert content is not None
            contents[name] = content.read()
    return contents
