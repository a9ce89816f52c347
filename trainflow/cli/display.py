"""Where progress is shown: drawn in place on a terminal, line by line anywhere else.

Process: driver.  Thread: main; on a terminal rich redraws from a thread of its own.
"""

from collections.abc import Iterable
from typing import Protocol

import typer
from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

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
            typer.echo(line)

    def notice(self, text: str) -> None:
        """Print it, as a line of its own."""
        typer.echo(f"trainflow: {text}")

    def close(self) -> None:
        """Everything has been written."""


class TerminalDisplay:
    """A panel that is redrawn in place; a notice stands in it until progress is heard again."""

    def __init__(self, console: Console):
        self._live = Live(console=console)
        self._progress: Progress | None = None

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
        self._live.stop()

    def _draw(self, drawing: RenderableType) -> None:
        self._live.start()
        self._live.update(drawing, refresh=True)


def choose_display(console: Console) -> Display:
    """Return the display that fits where ``console`` writes."""
    if console.is_terminal and not console.is_dumb_terminal:
        return TerminalDisplay(console)
    return PlainDisplay()
