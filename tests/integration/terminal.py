"""A terminal that a test types a page's commands into, and the page that has them."""

import re
import signal
import subprocess
import sys
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import psutil

from trainflow.clock import SYSTEM_CLOCK

_LOOK_EVERY_S = 0.1
# Whoever runs the tests may ignore Ctrl-C, as a background job does; a shell of that can't heed it.
_HEEDING_CTRL_C = (
    "import os, signal; signal.signal(signal.SIGINT, signal.SIG_DFL); os.execvp('bash', ['bash'])"
)
_BLOCK = re.compile(r"<!-- first day: (?P<name>[^>]*) -->\n```sh\n(?P<text>.*?)```", re.DOTALL)


def read_blocks(page: str) -> dict[str, list[str]]:
    """Return the commands of each marked block of a page in Markdown, by its name, in order."""
    return {
        found["name"]: re.sub(r"\\\n\s*", "", found["text"]).splitlines()
        for found in _BLOCK.finditer(page)
    }


class Terminal:
    """A shell. What it and its commands print is in a file."""

    def __init__(self, shell: "subprocess.Popen[str]", log: Path, within_s: float):
        self._shell = shell
        self._log = log
        self._within_s = within_s
        self._numbers = count()

    def begin(self, command: str) -> None:
        """Give a command that stays."""
        assert self._shell.stdin is not None
        self._shell.stdin.write(f"{{ {command}\n}} </dev/null\n")
        self._shell.stdin.flush()

    def run(self, command: str, leaves_with: int = 0) -> str:
        """Give a command; returns what it has printed once it is done."""
        begun = len(self._log.read_text())
        self.begin(command)
        return self.finish(begun, leaves_with)

    def finish(self, begun: int, leaves_with: int) -> str:
        """Wait for the end of what was given; returns what was printed from a character on."""
        mark = f"-- done {next(self._numbers)} with "
        self.begin(f'echo "{mark}$?"')
        self.wait(lambda: re.search(rf"^{mark}\d+$", self.read(), re.MULTILINE) is not None)
        printed, _, code = self.read()[begun:].partition(mark)
        assert int(code.split()[0]) == leaves_with, printed
        return printed

    def read(self) -> str:
        return self._log.read_text()

    def wait(self, reached: Callable[[], bool]) -> None:
        deadline_s = SYSTEM_CLOCK.monotonic_s() + self._within_s
        while not reached():
            assert self._shell.poll() is None, self.read()
            assert SYSTEM_CLOCK.monotonic_s() < deadline_s, self.read()[-4000:]
            SYSTEM_CLOCK.sleep(_LOOK_EVERY_S)

    def press_ctrl_c(self) -> None:
        """End what stays, as a terminal does; the shell itself goes on."""
        for child in psutil.Process(self._shell.pid).children():
            child.send_signal(signal.SIGINT)


@contextmanager
def open_terminal(
    folder: Path, log: Path, env: Mapping[str, str], within_s: float
) -> Generator[Terminal]:
    """Open one in a folder; what it runs is ended with it."""
    with (
        log.open("w") as printed,
        subprocess.Popen(
            [sys.executable, "-c", _HEEDING_CTRL_C],
            cwd=folder,
            env=env,
            stdin=subprocess.PIPE,
            stdout=printed,
            stderr=printed,
            text=True,
        ) as shell,
    ):
        terminal = Terminal(shell, log, within_s)
        try:
            yield terminal
        finally:
            children = psutil.Process(shell.pid).children()
            terminal.press_ctrl_c()
            _, stay = psutil.wait_procs(children, timeout=within_s)
            assert shell.stdin is not None
            shell.stdin.close()
            for child in stay:
                child.kill()
