"""One server of each kind for all tests here; a test gets a bucket or a folder of its own."""

import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from tests.testbed import network_file_system, s3_server
from tests.testbed.network_file_system import NetworkFileSystem
from tests.testbed.s3_server import S3Server
from trainflow.checkpointing import bounded_calls, s3_files
from trainflow.checkpointing.s3_files import S3Files


@pytest.fixture(scope="session")
def running_s3() -> Iterator[S3Server]:
    missing = s3_server.missing_programs()
    if missing:
        pytest.skip(f"needs {', '.join(missing)} (apt-get install {s3_server.PACKAGES})")
    with tempfile.TemporaryDirectory(prefix="trainflow-s3-") as folder:
        server = S3Server(Path(folder))
        try:
            server.make()
            yield server
        finally:
            server.stop()


@pytest.fixture
def s3(running_s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    """The server, up, with its address and keys in the environment."""
    for name, value in running_s3.environment.items():
        monkeypatch.setenv(name, value)
    return running_s3


@pytest.fixture
def bucket(s3: S3Server) -> str:
    name = f"run-{uuid4().hex[:8]}"
    S3Files()._files.mkdir(name)
    return name


@pytest.fixture(scope="session")
def running_mount() -> Iterator[NetworkFileSystem]:
    missing = network_file_system.why_not()
    if missing is not None:
        pytest.skip(missing)
    with tempfile.TemporaryDirectory(prefix="trainflow-gluster-") as folder:
        files = NetworkFileSystem(Path(folder))
        try:
            files.make()
            yield files
        finally:
            files.stop()


@pytest.fixture
def shared(running_mount: NetworkFileSystem) -> Path:
    """A folder on the network file system."""
    return running_mount.mount / uuid4().hex


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> Generator[None]:
    """Give a store that is silent up after seconds."""
    monkeypatch.setattr(bounded_calls, "_ANSWER_WITHIN_S", 2.0)
    monkeypatch.setattr(s3_files, "_READ_WITHIN_S", 1)
    monkeypatch.setattr(s3_files, "_CONNECT_WITHIN_S", 1)
    s3_files._connect.cache_clear()
    yield
    s3_files._connect.cache_clear()
