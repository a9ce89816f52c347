"""What ``trainflow serve`` says once: that the history can't be kept up, or nobody answers.

Process: driver.  Thread: main.  Blocks: for an answer of the service, four seconds at most.
"""

from collections.abc import Callable

from trainflow.cli.output import say
from trainflow.clock import Clock

_LOOK_EVERY_S = 5.0
_ANSWERS_WITHIN_S = 4.0  # it may itself wait for the process that keeps the history, for two
_SILENT_AT_MOST_S = 30.0  # as while a replica, or the process that keeps the history, starts again


class HistoryWatch:
    """Looks whether the history of a service on this machine is kept up."""

    def __init__(self, ask: Callable[[], str | None], clock: Clock):
        """Take what returns the problem, None without one; it raises OSError without an answer."""
        self._ask = ask
        self._clock = clock
        self._looked_at_s = self._heard_at_s = clock.monotonic_s()
        self._is_told = self._is_silence_told = False

    def look(self) -> None:
        """Look, unless that was done just now; who doesn't answer for a while may start again."""
        now_s = self._clock.monotonic_s()
        if now_s - self._looked_at_s < _LOOK_EVERY_S:
            return
        self._looked_at_s = now_s
        try:
            problem = self._ask()
        except OSError as error:
            if now_s - self._heard_at_s > _SILENT_AT_MOST_S and not self._is_silence_told:
                say(f"the service isn't ready, or gone: {error}", err=True)
                self._is_silence_told = True
            return
        self._heard_at_s = now_s
        if self._is_silence_told:
            say("the service answers again", err=True)
            self._is_silence_told = False
        if problem is not None and not self._is_told:
            say(f"the history can't be kept up for now: {problem}", err=True)
        elif problem is None and self._is_told:
            say("the history is kept up again", err=True)
        self._is_told = problem is not None


def asking(url: str) -> Callable[[], str | None]:
    """Return what asks the service at a URL why its history can't be kept up."""
    import httpx  # noqa: PLC0415  a part of an extra

    def ask() -> str | None:
        try:
            # Its certificate may be for its name; nothing is sent that is secret.
            answer = httpx.get(f"{url}/readyz", timeout=_ANSWERS_WITHIN_S, verify=False)
            return answer.raise_for_status().json().get("history_problem")
        except (httpx.HTTPError, ValueError) as error:
            raise ConnectionError(str(error)) from error

    return ask
