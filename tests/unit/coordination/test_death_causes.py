"""What one line says of a worker's death. Texts are those of Ray 2.56, but for addresses."""

import traceback

import pytest
from ray.exceptions import ActorDiedError, RayActorError, RuntimeEnvSetupError

from trainflow.coordination.death_causes import explain_death, explain_trace

ABOUT = (
    "The actor died unexpectedly before finishing this task.\n\tclass_name: Worker\n"
    "\tactor_id: 5ca346a16b96\n\tpid: 18597\n\tname: trainflow:job-1:slot0-1.0\n"
    "\tnamespace: trainflow\n\tip: 10.0.0.2\n"
)
EXIT = "The actor is dead because its worker process has died. Worker exit type: "
DETAIL = "Worker unexpectedly exits with a connection error code 2. End of file."
GUESSES = (
    " Some common causes include: (1) the process was killed by the OOM killer due to high memory "
    "usage, (2) ray stop --force was called, or (3) the worker crashed unexpectedly due to SIGSEGV."
    "\nThe actor never ran - it was cancelled before it started running."
)


@pytest.mark.parametrize(
    ("told", "line"),
    [
        (f"{EXIT}SYSTEM_ERROR Worker exit detail: {DETAIL}{GUESSES}", f"SYSTEM_ERROR: {DETAIL}"),
        (
            f"{EXIT}NODE_OUT_OF_MEMORY Worker exit detail: Task was killed.\nMemory: 9 GB.",
            "NODE_OUT_OF_MEMORY: Task was killed. Memory: 9 GB.",
        ),
        (
            "The actor is dead because it was killed by `ray.kill`.",
            "The actor is dead because it was killed by `ray.kill`.",
        ),
    ],
)
def test_of_a_process_it_says_how_it_left_and_not_what_may_be_behind_any_death(
    told: str, line: str
):
    cause = explain_death(RayActorError(error_msg=ABOUT + told))
    assert cause.line == f"its actor died: {line}"
    assert cause.words == ABOUT + told, "its log has all of it"


def test_what_else_ray_tells_is_one_line_too():
    cause = explain_death(RuntimeEnvSetupError("pip failed:\n\x1b[31m  no such package\x1b[39m"))
    assert cause.line == (
        "RuntimeEnvSetupError: Failed to set up runtime environment. pip failed: no such package"
    )
    assert cause.words.endswith("pip failed:\n  no such package")
    base = "The actor died unexpectedly before finishing this task."
    assert explain_death(ActorDiedError()).line == f"its actor died: {base}"


def test_a_line_has_an_end():
    assert len(explain_death(RayActorError(error_msg="many words " * 99)).line) < 350


def test_of_a_constructor_it_is_the_exception_and_where_it_was_raised():
    told = (
        "The actor died because of an error raised in its creation task, "
        "\x1b[36mray::Worker.__init__()\x1b[39m (pid=18587, ip=10.0.0.2, repr=<Worker>)\n"
        '           ^^^^^^^^^^^^^^^^^\n  File "/jobs/own.py", line 7, in __init__\n'
        '    self.deep(how)\n  File "/jobs/own.py", line 12, in deep\n'
        '    raise ValueError("no such\\nthing")\nValueError: no such\nthing'
    )
    assert explain_trace(told) == "ValueError: no such thing (/jobs/own.py:12, in deep)"


def test_of_a_chain_it_is_the_last_exception():
    def fail() -> None:
        try:
            {}["first"]
        except KeyError as error:
            raise RuntimeError("then") from error

    with pytest.raises(RuntimeError) as raised:
        fail()
    said = explain_trace("".join(traceback.format_exception(raised.value)))
    assert said.startswith(f"RuntimeError: then ({__file__}:")
    assert said.endswith(", in fail)")


def test_of_code_that_can_t_be_read_it_is_the_line():
    trace = '  File "/jobs/own.py", line 3\n    if x\n        ^\nSyntaxError: expected a colon'
    assert explain_trace(trace) == "SyntaxError: expected a colon (/jobs/own.py:3)"


@pytest.mark.parametrize(("trace", "line"), [("", ""), ("Traceback: ValueError",) * 2])
def test_of_what_is_no_traceback_it_is_the_last_line(trace: str, line: str):
    assert explain_trace(trace) == line
