"""What every test shares: reproducible property tests, and none that needs what isn't there."""

import atexit
import gc
import os
import sys

import pytest
import torch
from hypothesis import settings

pytest_plugins = ["tests.testbed.fixtures", "tests.testbed.net_fixtures"]

settings.register_profile("default", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "default")


_exit_codes: list[int] = [pytest.ExitCode.INTERNAL_ERROR]  # the last one counts


def pytest_sessionfinish(exitstatus: int) -> None:
    """Note what the process is to leave with."""
    _exit_codes.append(exitstatus)


def _leave_at_once(pid: int) -> None:
    """End before a thread of Ray's can crash the process, as `trainflow.cli.leaving` does."""
    if "ray" in sys.modules and os.getpid() == pid:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(_exit_codes[-1])


atexit.register(_leave_at_once, os.getpid())  # as the first, so that it comes after all others


class FailuresAtOnce:
    """Says at once why a test has failed: a run that is cut off has no end to say it at."""

    def __init__(self, config: pytest.Config):
        self._terminal = config.pluginmanager.get_plugin("terminalreporter")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and self._terminal is not None:
            self._terminal.write_line(f"\n{report.nodeid}\n{report.longreprtext}")


@pytest.hookimpl(trylast=True)  # once there is a reporter
def pytest_configure(config: pytest.Config) -> None:
    if os.environ.get("CI"):
        config.pluginmanager.register(FailuresAtOnce(config))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run what shares a cluster last: while it is up, Ray prints into other tests' output."""
    items.sort(key=lambda item: item.get_closest_marker("chaos") is not None)


def pytest_collection_finish() -> None:
    """Spare the collector of cycles what is loaded by now: it took a tenth of the tests' time."""
    gc.collect()
    gc.freeze()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what needs a GPU where there is none; everything else always runs."""
    if item.get_closest_marker("gpu") and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
