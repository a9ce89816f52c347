"""Print a log: into a file or a pipe as it is, at a terminal without what would steer that.

Whoever may run a job writes its log. Colours stay; what moves the cursor, names the window or has
the terminal answer is spelled out.

Process: driver.  Thread: main.
"""

import re
import sys

import typer

_COLOUR = rb"\x1b\[[0-9;:]*m"
# The control characters of ASCII but tab, newline and carriage return, and those of Unicode.
_STEERING = re.compile(rb"(" + _COLOUR + rb")|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]|\xc2[\x80-\x9f]")
_CUT = re.compile(rb"(\x1b(\[[0-9;:]{0,40})?|\xc2)\Z")


class LogOutput:
    """Where a log goes."""

    def __init__(self, *, is_terminal: bool):
        self._is_terminal = is_terminal
        self._cut = b""

    @classmethod
    def to_stdout(cls) -> "LogOutput":
        """Print as it suits what stdout is."""
        return cls(is_terminal=sys.stdout is not None and sys.stdout.isatty())

    def write(self, data: bytes) -> None:
        """Print the next bytes; what ends within a colour or a character waits for its rest."""
        if self._is_terminal:
            data = self._cut + data
            found = _CUT.search(data)
            self._cut = b"" if found is None else found[0]
            data = _spell(data.removesuffix(self._cut))
        typer.echo(data, nl=False)

    def end(self) -> None:
        """Print what has waited for a rest that didn't come."""
        rest, self._cut = self._cut, b""
        typer.echo(_spell(rest), nl=False)


def _spell(data: bytes) -> bytes:
    return _STEERING.sub(_spell_one, data)


def _spell_one(found: re.Match[bytes]) -> bytes:
    return found[1] or b"".join(rb"\x%02x" % byte for byte in found[0])
