"""What makes a process one that can't be forked, and where its forks look for modules."""

import json
import subprocess
import sys
from pathlib import Path

from trainflow.coordination.forkserver.imports import Imports

# In a process of its own: that of the tests has threads of whatever ran there before.
_LOOK = """
import json, sys, threading
from pathlib import Path
from trainflow.coordination.forkserver import imports

folder = Path(sys.argv[1])
imports._DEVICES = (str(folder / "nvidia"),)
threads = imports._count_threads()
found = {"nothing": imports._find_unfit(threads)}
with (folder / "nvidia0").open("w"), (folder / "other").open("w"):
    found["device"] = imports._find_unfit(threads)
over = threading.Event()
thread = threading.Thread(target=over.wait, name="of-a-module")
thread.start()
found["thread"] = imports._find_unfit(threads)
over.set()
thread.join()
found["nothing again"] = imports._find_unfit(threads)
print(json.dumps(found))
"""


def test_open_devices_and_threads_forbid_forks(tmp_path: Path):
    looked = subprocess.run(
        [sys.executable, "-c", _LOOK, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert json.loads(looked.stdout) == {
        "nothing": "",
        "device": f"what was imported has opened {tmp_path / 'nvidia0'}",
        "thread": "what was imported has begun threads: of-a-module",
        "nothing again": "",
    }


def test_a_script_s_folder_comes_before_python_s_places_and_after_what_modules_put_first():
    path = ["/first", "/python", "/packages", "/last"]
    found = Imports({}, {}, own_path=["/python", "/packages"], path=path, unfit="")
    assert found.path_of("/job/script.py") == [
        *("/first", "/job", "/python", "/packages", "/last"),
    ]
