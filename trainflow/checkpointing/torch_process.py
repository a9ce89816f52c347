"""Do what needs torch, or a job's code, in a process of its own, so that this one loads neither.

Process: any.  Threads: none of its own.  Blocks: until the process has answered.
Fails: with the error that the process ended with; when the time is over, or another thread says so,
it and all that it started are killed.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainflow import errors
from trainflow.errors import CheckpointError, TrainFlowError

Json = Any

_BEGIN = "trainflow.checkpointing.bound_process"
_OWN_PATH = str(Path(errors.__file__).parent.parent)
_TAIL_BYTES = 2000


@dataclass(frozen=True)
class Surroundings:
    """In what a process works.

    Attributes:
        import_paths: where a job's modules are looked for; this process's own paths if None.
        variables: of its environment, beside those that this process has. Values may be secrets:
            they are in its environment, and in nothing else.
        niceness: how far it stands back behind others that want the CPU: 0 to 19.
    """

    import_paths: Sequence[str] | None = None
    variables: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    niceness: int = 0

    def environment(self, scratch: str) -> dict[str, str]:
        """Return the whole environment of a process that writes what it drops to ``scratch``."""
        if self.import_paths is None:
            paths = [str(Path.cwd()), *sys.path]
        else:
            paths = list(self.import_paths)
        paths += [self.variables.get("PYTHONPATH", ""), _OWN_PATH]
        return {
            **os.environ,
            **self.variables,
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            "TMPDIR": scratch,  # what it leaves behind when it is killed goes with that
        }


_HERE = Surroundings()


class Leash:
    """By which another thread ends the process that `run_with_torch` waits for."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._is_pulled = False

    @property
    def is_pulled(self) -> bool:
        """Whether what ran, or was to run, is ended."""
        return self._is_pulled

    def pull(self) -> None:
        """Kill the process and all that it started; one that is yet to start is killed at once."""
        with self._lock:
            self._is_pulled = True
            if self._process is not None:
                _kill_all_of(self._process)

    @contextmanager
    def holding(self, process: "subprocess.Popen[bytes]") -> Generator[None]:
        """Have a process to end."""
        with self._lock:
            self._process = process
            if self._is_pulled:
                _kill_all_of(process)
        try:
            yield
        finally:
            with self._lock:
                self._process = None


def run_with_torch(
    module: str,
    request: Json,
    *,
    surroundings: Surroundings = _HERE,
    timeout_s: float | None = None,
    leash: Leash | None = None,
) -> Json:
    """Run ``python -m module``, which calls `trainflow.computation.own_process.answer_request`.

    Args:
        module: its dotted name.
        request: JSON.
        surroundings: in what it works.
        timeout_s: how long it may take.
        leash: by which another thread ends it.

    Raises:
        TrainFlowError: what it raised.
        CheckpointError: it raised something else, died, took too long, or was ended.
    """
    message = json.dumps({"niceness": surroundings.niceness, "request": request})
    with (
        tempfile.TemporaryDirectory(prefix="trainflow-") as scratch,
        subprocess.Popen(
            [sys.executable, "-m", _BEGIN, str(os.getpid()), module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            env=surroundings.environment(scratch),
        ) as process,
        (leash or Leash()).holding(process),
    ):
        try:
            output, trouble = process.communicate(message.encode(), timeout_s)
        except subprocess.TimeoutExpired:
            raise CheckpointError(
                f"{module}: got no answer within {timeout_s:g} s, expected one; it was killed: "
                "give it more time"
            ) from None
        finally:
            _kill_all_of(process)
    return _read_answer(module, process.returncode, output, trouble)


def _kill_all_of(process: "subprocess.Popen[bytes]") -> None:
    """Kill what is left of the process's session."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _read_answer(module: str, returncode: int, output: bytes, trouble: bytes) -> Json:
    try:
        reply = json.loads(output)
    except ValueError:
        told = trouble[-_TAIL_BYTES:].decode(errors="replace").strip()
        raise CheckpointError(
            f"{module}: got no answer, and exit status {returncode}, expected one; it said: {told}"
        ) from None
    if "error" not in reply:
        return reply["answer"]
    kind = getattr(errors, reply["kind"], None) if reply["kind"] else None
    if isinstance(kind, type) and issubclass(kind, TrainFlowError):
        raise kind(reply["error"])
    raise CheckpointError(f"{module}: {reply['error']}")
