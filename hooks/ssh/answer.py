"""What a command said."""

from __future__ import annotations

from dataclasses import dataclass

# What has more is no number of anything.
MOST_DIGITS = 18


@dataclass(frozen=True, slots=True)
class CommandResult:
    """What a command said.

    :param status: its exit status; None: it could not be run, or its answer is cut
    """

    status: int | None
    stdout: str = ""
    stderr: str = ""

    @property
    def lines(self) -> list[str]:
        """The standard output by lines, whatever ends them."""
        return self.stdout.replace("\r\n", "\n").replace("\r", "\n").split("\n")

    @property
    def cut_line(self) -> str:
        """The last line of the standard output if that has no end, as where the answer is cut; empty: it has one."""
        return self.lines[-1]

    @property
    def message(self) -> str:
        """What is shown to users: the standard error, else the standard output, else the exit status."""
        text = " ".join((self.stderr.strip() or self.stdout.strip()).split())
        if len(text) > 2000:
            text = f"{text[:1000]} [...] {text[-1000:]}"
        if text:
            return text
        return "no answer" if self.status is None else f"no output, but exit status {self.status}"


def whole_number(text: str) -> int | None:
    """A whole number as a command writes one; None: it is none, or beyond all measure."""
    return int(text) if text.isdecimal() and len(text) <= MOST_DIGITS else None


class TransportError(OSError):
    """A site could not be asked, or did not do what it was asked; nothing else is concluded from it."""
