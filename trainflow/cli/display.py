"""Where progress is shown: drawn in place on a terminal, line by line anywhere else.

Output that can't be written is given up; the run is followed all the same.

Process: driver.  Thread: main.
"""

import contextlib
import errno
import os
from collections.abc import Iterable
from typing import Protocol

from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

from trainflow.cli.output import report_loss, say, silence
from trainflow.cli.progress import Progress, draw


class Display(Protocol):
    """What an attached run is shown on."""

    def show(self, progress: Progress, news: Iterable[str]) -> None:
        """Show where the run stands; ``news`` are the lines of what happened since."""
        ...

    def notice(self, text: str) -> None:
        """Show what the driver itself has to say."""
        ...

    def close(self) -> None:
        """Leave the output to others."""
        ...


class PlainDisplay:
    """A line for each thing that happens, written at once."""

    def show(self, progress: Progress, news: Iterable[str]) -> None:
        """Print the news."""
        del progress
        for line in news:
            say(line)

    def notice(self, text: str) -> None:
        """Print it, as a line of its own."""
        say(f"trainflow: {text}")

    def close(self) -> None:
        """Everything has been written."""


class TerminalDisplay:
    """A panel that is redrawn in place; a notice stands in it until progress is heard again."""

    def __init__(self, console: Console):
        self._live = Live(console=console, auto_refresh=False)
        self._progress: Progress | None = None
        self._lost = False

    def show(self, progress: Progress, news: Iterable[str]) -> None:
        """Redraw the panel, which holds the newest of the news anyway."""
        del news
        self._progress = progress
        self._draw(draw(progress))

    def notice(self, text: str) -> None:
        """Show it in the place of the run's state."""
        self._draw(Text(text) if self._progress is None else draw(self._progress, text))

    def close(self) -> None:
        """Leave the last drawing where it is."""
        try:
            self._live.stop()
        except OSError as error:
            self._give_up(error)

    def _draw(self, drawing: RenderableType) -> None:
        if self._lost:
            return
        try:
            self._live.start()
            self._live.update(drawing, refresh=True)
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        self._lost = True
        silence(self._live.console.file)
        with contextlib.suppress(IndexError):  # rich, of a start that has failed halfway
            self._live.stop()  # gives stderr back, on which the loss is reported
        report_loss(error)


class DriverConsole(Console):
    """A console that a reader's leaving doesn't end the process of."""

    def on_broken_pipe(self) -> None:
        """Raise, as for any other output that can't be written; rich itself would exit."""
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


def choose_display(console: Console) -> Display:
    """Return the display that fits where ``console`` writes."""
    if console.is_terminal and not console.is_dumb_terminal:
        return TerminalDisplay(console)
    return PlainDisplay()
