"""The cluster that is served on, with a stub for the process that talks to Ray."""

import socket

import pytest

from tests.unit.coordination.fakes import SleepyClock
from trainflow.cli import serving_cluster
from trainflow.cli.serving_cluster import Head, HeadWatch, ServingCluster
from trainflow.errors import CoordinationError, UnreachableError
from trainflow.service.settings import ServiceSettings


@pytest.fixture(autouse=True)
def _stub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving_cluster, "_WORKS", "tests.unit.cli.serving_stub")


def test_what_was_found_is_told_and_what_ray_says_beside_it_is_not(
    capfd: pytest.CaptureFixture[str],
):
    settings = ServiceSettings.model_validate({"http": {"port": 8123}})
    head = ServingCluster("answers").deploy(settings)
    assert head == Head("10.0.0.1:8123", is_open=True, dashboard="10.0.0.1:8265")
    ServingCluster("answers").undeploy()
    assert capfd.readouterr() == ("", "")


def test_that_a_service_was_there_is_told():
    head = ServingCluster("has served").deploy(ServiceSettings())
    assert head == Head("10.0.0.1:1", is_open=False, has_replaced=True)


@pytest.mark.parametrize(
    ("address", "kind"), [("refuses", CoordinationError), ("is away", UnreachableError)]
)
def test_an_error_comes_as_it_was_raised(address: str, kind: type[CoordinationError]):
    with pytest.raises(CoordinationError, match=f"^it {address}$") as error:
        ServingCluster(address).deploy(ServiceSettings())
    assert type(error.value) is kind


def test_an_answer_counts_whatever_becomes_of_who_gave_it():
    head = ServingCluster("answers and dies").deploy(ServiceSettings())
    assert head is not None
    assert not head.is_open


def test_a_process_that_ray_ends_is_told_of_with_its_last_words():
    with pytest.raises(UnreachableError, match=r"deploy the service.* by SIGABRT.*\na word of Ray"):
        ServingCluster("dies").deploy(ServiceSettings())


def test_nothing_is_waited_for_once_the_cluster_is_gone():
    looks: list[int] = []

    def require() -> None:
        looks.append(len(looks))
        if len(looks) > 3:
            raise UnreachableError("the head is gone")

    with pytest.raises(UnreachableError, match="the head is gone"):
        ServingCluster("says nothing", require).undeploy()


def test_nothing_is_waited_for_once_it_is_unwanted():
    looks: list[int] = []

    def is_unwanted() -> bool:
        looks.append(len(looks))
        return len(looks) > 3

    assert ServingCluster("says nothing").deploy(ServiceSettings(), is_unwanted) is None
    assert len(looks) == 4


def test_a_head_of_others_may_be_away_for_a_minute():
    clock = SleepyClock()
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        watch = HeadWatch(address, clock)
        for _ in range(10):
            clock.sleep(10)
            watch.require()
    for _ in range(6):
        clock.sleep(10)
        watch.require()
    clock.sleep(10)
    with pytest.raises(UnreachableError, match=f"nobody who listens at {address} for 60 s"):
        watch.require()


def test_a_head_that_was_started_again_counts_anew():
    clock = SleepyClock()
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        watch = HeadWatch(f"127.0.0.1:{port}", clock)
    for _ in range(3):
        for _ in range(5):
            clock.sleep(10)
            watch.require()
        with socket.create_server(("127.0.0.1", port)):
            clock.sleep(10)
            watch.require()
