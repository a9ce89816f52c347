"""The cluster that ``trainflow serve`` serves on: deployed to, watched, and left.

This process never connects to it: Ray would end it, at once and without a word, if that died.

Process: driver.  Thread: main.  Blocks: until a process of its own has done what was asked.
"""

import json
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any

from trainflow.clock import SYSTEM_CLOCK, Clock
from trainflow.errors import CoordinationError, UnreachableError

if TYPE_CHECKING:
    from trainflow.service.settings import ServiceSettings

_LOOK_EVERY_S = 0.05
_KNOCK_EVERY_S = 2.0
_SILENT_AT_MOST_S = 60.0  # for as long Ray's own processes wait for their head
_SAID_AT_MOST = 2000
_WORKS = "trainflow.service.on_ray.serving_process"
_KINDS = {kind.__name__: kind for kind in (CoordinationError, UnreachableError)}


@dataclass(frozen=True)
class Head:
    """What was found of a cluster's head.

    Attributes:
        address: that Ray has for it.
        is_open: whether other machines may use it without a token of Ray's.
        dashboard: host and port to which ``ray job submit`` turns; "" without.
        has_replaced: a service was there, which is no more.
    """

    address: str
    is_open: bool
    dashboard: str = ""
    has_replaced: bool = False


@dataclass
class ServingCluster:
    """A cluster, by its address.

    Attributes:
        address: as a person, or the head that was started, gives it.
        require: raises UnreachableError if the cluster is known to be gone.
    """

    address: str
    require: Callable[[], None] = lambda: None

    def deploy(
        self, settings: "ServiceSettings", is_unwanted: Callable[[], bool] = lambda: False
    ) -> Head | None:
        """Have it serve; returns once it answers, or with None once that is no longer wanted.

        Raises:
            UnreachableError: it doesn't answer, or dies meanwhile.
            CoordinationError: the service doesn't come up.
        """
        answer = self._have("deploy", settings.model_dump_json(), is_unwanted)
        return None if answer is None else Head(**answer)

    def undeploy(self) -> None:
        """Take the service off it, and Serve too if that has no other application.

        Raises:
            UnreachableError: it doesn't answer, or dies meanwhile.
        """
        self._have("undeploy", "", lambda: False)

    def _have(
        self, action: str, settings: str, is_unwanted: Callable[[], bool]
    ) -> dict[str, Any] | None:
        command = [sys.executable, "-m", _WORKS, self.address, action]
        with (
            tempfile.TemporaryFile() as asked,
            tempfile.TemporaryFile() as told,
            tempfile.TemporaryFile() as said,
        ):
            asked.write(settings.encode())
            asked.seek(0)
            worker = subprocess.Popen(
                command, stdin=asked, stdout=told, stderr=said, start_new_session=True
            )
            try:
                while worker.poll() is None:
                    self.require()
                    if is_unwanted():
                        return None
                    SYSTEM_CLOCK.sleep(_LOOK_EVERY_S)
            finally:
                worker.kill()
                worker.wait()
            return _read_answer(action, told, said, worker.returncode)


def _read_answer(action: str, told: IO[bytes], said: IO[bytes], exit_code: int) -> dict[str, Any]:
    told.seek(0)
    try:
        answer = json.loads((told.read().splitlines() or [b""])[-1])
    except ValueError:
        said.seek(0)
        words = said.read().decode(errors="replace").strip()[-_SAID_AT_MOST:]
        end = f"with {exit_code}" if exit_code >= 0 else f"by {signal.Signals(-exit_code).name}"
        raise UnreachableError(
            f"cluster: got no answer to what was asked of it ({action} the service), expected one; "
            f"it may have died. The process that asked ended {end}, and said:\n{words or 'nothing'}"
        ) from None
    if "error" in answer:
        raise _KINDS.get(answer["kind"], CoordinationError)(answer["error"])
    return answer


class HeadWatch:
    """Looks whether a head that others have started is still there; it may be started again."""

    def __init__(self, address: str, clock: Clock):
        self._address = address
        self._clock = clock
        self._heard_s = self._knocked_s = clock.monotonic_s()

    def require(self) -> None:
        """Raise UnreachableError if nobody has listened there for a minute."""
        now_s = self._clock.monotonic_s()
        if now_s - self._knocked_s < _KNOCK_EVERY_S:
            return
        self._knocked_s = now_s
        if _is_listening(self._address):
            self._heard_s = now_s
        elif now_s - self._heard_s > _SILENT_AT_MOST_S:
            raise UnreachableError(
                f"cluster: got nobody who listens at {self._address} for {_SILENT_AT_MOST_S:.0f} "
                "s, expected its head, which has died; start a cluster, and serve again"
            )


def _is_listening(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _KNOCK_EVERY_S).close()
    except OSError:
        return False
    return True
