"""The inner side of `trainflow.checkpointing.torch_process`: one request, one answer, one process.

Process: one of its own.  Thread: main.
"""

import ctypes
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from typing import Any

from trainflow.errors import TrainFlowError

Json = Any

_PR_SET_PDEATHSIG = 1


def answer_request(answer: Callable[[Json], Json]) -> None:
    """Read a request from stdin, and write what ``answer`` makes of it to stdout, both as JSON.

    Whatever else is printed meanwhile, by a job's own code too, goes to stderr. The process dies
    with the one that started it.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    with os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8") as answers:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        request = json.load(sys.stdin)
        os.nice(request["niceness"])
        try:
            reply = {"answer": answer(request["request"])}
        except TrainFlowError as error:
            reply = {"error": str(error), "kind": type(error).__name__}
        except Exception as error:  # noqa: BLE001  not swallowed: the other side raises it
            traceback.print_exc()
            reply = {"error": f"{type(error).__name__}: {error}", "kind": ""}
        json.dump(reply, answers)
