"""What stands for the process that deploys: does as its address says.

``python -m tests.unit.cli.serving_stub ADDRESS deploy|undeploy``, with settings on stdin.
"""

import json
import os
import signal
import sys

address, action = sys.argv[1:3]
settings = sys.stdin.read()
print("a word of Ray's", file=sys.stderr, flush=True)
match address:
    case "answers":
        print("another one")
        port = json.loads(settings)["http"]["port"] if action == "deploy" else None
        told = {"address": f"10.0.0.1:{port}", "is_open": True, "dashboard": "10.0.0.1:8265"}
        print(json.dumps(told if action == "deploy" else {}))
    case "has served":
        told = {"address": "10.0.0.1:1", "is_open": False, "dashboard": "", "has_replaced": True}
        print(json.dumps(told))
    case "refuses" | "is away":
        kind = "UnreachableError" if address == "is away" else "CoordinationError"
        print(json.dumps({"error": f"it {address}", "kind": kind}))
    case "answers and dies":
        print(json.dumps({"address": "10.0.0.1:1", "is_open": False}), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    case "dies":
        os.kill(os.getpid(), signal.SIGABRT)
    case _:
        signal.pause()
