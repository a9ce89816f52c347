"""One server of each kind for a whole test session; a test gets a bucket or a folder of its own."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from tests.testbed import network_file_system, s3_server
from tests.testbed.network_file_system import NetworkFileSystem
from tests.testbed.s3_server import S3Server
from trainflow.checkpointing.s3_files import S3Files


@pytest.fixture(scope="session")
def s3_if_any() -> Iterator[S3Server | None]:
    """A server, if this machine has what it takes."""
    if s3_server.missing_programs():
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="trainflow-s3-") as folder:
        server = S3Server(Path(folder))
        try:
            server.make()
            yield server
        finally:
            server.stop()


@pytest.fixture(scope="session")
def running_s3(s3_if_any: S3Server | None) -> S3Server:
    if s3_if_any is None:
        missing = ", ".join(s3_server.missing_programs())
        pytest.skip(f"needs {missing} (apt-get install {s3_server.PACKAGES})")
    return s3_if_any


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
