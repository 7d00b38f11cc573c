"""The result of a command at a site."""

from __future__ import annotations

from lading.scheduling.model.light_dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CommandResult:
    """The result of a command.

    :param status: its exit status; None: it could not be run, or its answer is incomplete
    """

    status: int | None
    stdout: str = ""
    stderr: str = ""

    @property
    def lines(self) -> list[str]:
        """The lines of the standard output, with any kind of line end."""
        return self.stdout.replace("\r\n", "\n").replace("\r", "\n").split("\n")

    @property
    def cut_line(self) -> str:
        """The last line of the standard output if it is incomplete, as in a cut answer; empty: it is complete."""
        return self.lines[-1]

    @property
    def message(self) -> str:
        """The text for users: the standard error, else the standard output, else the exit status."""
        text = " ".join((self.stderr.strip() or self.stdout.strip()).split())
        if len(text) > 2000:
            text = f"{text[:1000]} [...] {text[-1000:]}"
        if text:
            return text
        return "no answer" if self.status is None else f"no output, but exit status {self.status}"


def whole_number(text: str) -> int | None:
    """Parse a whole number that a command has printed; None: it is not one, or implausibly long."""
    # A longer text is not a plausible number.
    return int(text) if text.isdecimal() and len(text) <= 18 else None


class TransportError(OSError):
    """A site could not be asked, or did not do what was requested. No other conclusion may be drawn from it."""

    retry_in: float = 0.0
    """Seconds until the connection can be tried again."""
