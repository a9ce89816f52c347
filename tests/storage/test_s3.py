"""Checkpoints in a real S3 server: what it acknowledged stays, and what it refuses is said."""

import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from tests.storage.uploads import call_after, leave, load, make_payload, serving
from tests.testbed.s3_server import USER, S3Server
from tests.unit.checkpointing.layouts import make_manifest
from trainflow.checkpointing.chunks import CHUNK_BYTES
from trainflow.checkpointing.collector import collect
from trainflow.checkpointing.s3_files import PART_BYTES, S3Files
from trainflow.checkpointing.store import CheckpointStore
from trainflow.checkpointing.verification import quarantine, verify
from trainflow.errors import CheckpointConflictError, StoreError

pytestmark = [pytest.mark.storage, pytest.mark.slow, pytest.mark.timeout(180)]

NUM_CHUNKS = 6
THAWED_WITHIN_S = 30.0


@pytest.fixture
def url(bucket: str) -> str:
    return f"s3://{bucket}/runs/one"


@pytest.fixture
def store(url: str) -> CheckpointStore:
    return CheckpointStore(url)


def test_checkpoints_are_written_read_verified_taken_away_and_collected(
    url: str, store: CheckpointStore, tmp_path: Path
):
    payloads = {step: make_payload(step, NUM_CHUNKS) for step in (10, 20, 30)}
    half = NUM_CHUNKS // 2 * CHUNK_BYTES
    payloads[20] = payloads[10][:half] + payloads[20][half:]
    with serving(tmp_path / "node", url) as desk:
        for step, payload in payloads.items():
            leave(tmp_path / "node", step, payload)
            desk.wait_for(step)
    assert desk.failed == {}
    assert store.committed_steps() == [10, 20, 30]
    assert all(load(store, step) == payload for step, payload in payloads.items())
    assert not any(verify(store, step).flaws for step in payloads)

    damaged = list(store.read_manifest(30).chunks().values())[1]
    store.write_chunk(damaged, b"something else")
    assert len(verify(store, 30).flaws) == 1
    assert quarantine(store, 30) == 1
    assert store.committed_steps() == [10, 20]

    collected = collect(store, {20})
    assert collected.steps == (10,)
    assert collected.num_chunks == NUM_CHUNKS // 2 + NUM_CHUNKS - 1
    assert load(store, 20) == payloads[20]
    assert set(store.chunk_ids()) == set(store.read_manifest(20).chunks())


def test_a_large_manifest_goes_in_parts(store: CheckpointStore):
    config = {"text": "x" * (2 * PART_BYTES)}
    store.commit(replace(make_manifest(), step=5, config=config))
    assert store.read_manifest(5).config == config
    info = S3Files()._files.info(store._path(f"manifests/{store.committed_manifest(5)}"))
    assert info["ETag"].strip('"').endswith("-3"), "the server put three parts together"


def test_of_sixteen_writers_of_a_step_one_wins(store: CheckpointStore):
    begin = threading.Barrier(16)

    def write(number: int) -> str | None:
        manifest = replace(make_manifest(), step=7, attempt=f"w{number}")
        begin.wait()
        try:
            store.commit(manifest)
        except CheckpointConflictError:
            return None
        return manifest.attempt

    with ThreadPoolExecutor(16) as pool:
        winners = [attempt for attempt in pool.map(write, range(16)) if attempt]
    assert winners == [store.read_manifest(7).attempt]


def test_a_bucket_that_ignores_the_condition_is_refused(bucket: str, store: CheckpointStore):
    """As this server does where a bucket keeps old versions."""
    settings = {"Status": "Enabled"}
    S3Files()._files.call_s3(
        "put_bucket_versioning", Bucket=bucket, VersioningConfiguration=settings
    )
    with pytest.raises(StoreError, match="replaces a file though told not to"):
        store.commit(make_manifest())
    assert store.committed_steps() == []


class TestRefused:
    @pytest.mark.parametrize(
        ("name", "value", "said"),
        [
            ("AWS_SECRET_ACCESS_KEY", "wrong", "403 SignatureDoesNotMatch"),
            ("AWS_ACCESS_KEY_ID", "nobody", "403 InvalidAccessKeyId"),
            ("AWS_ENDPOINT_URL", "http://127.0.0.1:9", "Could not connect to the endpoint"),
        ],
    )
    def test_wrong_settings(self, url: str, monkeypatch, name: str, value: str, said: str):
        monkeypatch.setenv(name, value)
        with pytest.raises(StoreError, match=f"{said}.*look at its address, credentials"):
            CheckpointStore(url).committed_steps()

    def test_no_credentials(self, url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.delenv(name)
        monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
        with pytest.raises(StoreError, match="Unable to locate credentials"):
            CheckpointStore(url).committed_steps()

    def test_no_bucket(self, s3: S3Server):
        with pytest.raises(StoreError, match="404 NoSuchBucket"):
            CheckpointStore("s3://no-such-bucket/run").committed_steps()

    def test_a_user_that_is_suspended_in_the_midst_of_an_upload(
        self, s3: S3Server, url: str, store: CheckpointStore, tmp_path: Path, monkeypatch
    ):
        first = make_payload(1, 2)
        with serving(tmp_path / "node", url, give_up_after_s=2.0) as desk:
            leave(tmp_path / "node", 1, first)
            desk.wait_for(1)
            suspend = call_after(2, lambda: s3.admin("user", "suspend", "--uid", USER))
            monkeypatch.setattr(CheckpointStore, "write_chunk", suspend)
            leave(tmp_path / "node", 2, make_payload(2, NUM_CHUNKS))
            try:
                desk.wait_for(2)
            finally:
                s3.admin("user", "enable", "--uid", USER)
        assert "403" in desk.failed[2]
        assert store.committed_steps() == [1]
        assert load(store, 1) == first


def test_a_server_that_is_killed_in_mid_upload_and_comes_back_loses_nothing(
    s3: S3Server, url: str, store: CheckpointStore, tmp_path: Path, monkeypatch
):
    """The upload goes on where it was; what has a marker is whole."""
    payloads = {step: make_payload(step, 2 * NUM_CHUNKS) for step in (1, 2, 3)}
    with serving(tmp_path / "node", url) as desk:
        leave(tmp_path / "node", 1, payloads[1])
        desk.wait_for(1)
        killed = threading.Event()

        def kill() -> None:
            s3.kill()
            killed.set()

        monkeypatch.setattr(CheckpointStore, "write_chunk", call_after(NUM_CHUNKS, kill))
        leave(tmp_path / "node", 2, payloads[2])
        assert killed.wait(30)
        monkeypatch.undo()
        for name, value in s3.environment.items():
            monkeypatch.setenv(name, value)
        s3.start_again()
        desk.wait_for(2)
        leave(tmp_path / "node", 3, payloads[3])
        desk.wait_for(3)
    assert desk.failed == {}
    assert store.committed_steps() == [1, 2, 3]
    assert not any(verify(store, step).flaws for step in payloads)
    assert all(load(store, step) == payload for step, payload in payloads.items())


def is_answering(store: CheckpointStore) -> bool:
    try:
        store.committed_steps()
    except StoreError:
        return False
    return True


def test_a_server_that_is_silent_is_given_up_in_time(
    s3: S3Server, store: CheckpointStore, impatient: None, tmp_path: Path, monkeypatch
):
    url = store.url
    payload = make_payload(1, 3)
    with serving(tmp_path / "node", url, give_up_after_s=4.0) as desk:
        leave(tmp_path / "node", 1, payload)
        desk.wait_for(1)
        monkeypatch.setattr(CheckpointStore, "write_chunk", call_after(4, s3.freeze))
        try:
            leave(tmp_path / "node", 2, make_payload(2, 3 * NUM_CHUNKS))
            desk.wait_for(2)
            with pytest.raises(StoreError, match="does not answer"):
                verify(store, 1)
        finally:
            s3.thaw()
        assert "does not answer" in desk.failed[2]
        give_up_at_s = time.monotonic() + THAWED_WITHIN_S
        while not is_answering(store):
            assert time.monotonic() < give_up_at_s
        leave(tmp_path / "node", 3, payload)
        desk.wait_for(3)
    assert desk.committed == [1, 3]
    assert load(store, 3) == payload


def test_the_deployment_s_bucket_is_made_once(s3: S3Server):
    script = Path(__file__).parents[2] / "deploy" / "make_bucket.py"
    for _ in range(2):
        subprocess.run([sys.executable, str(script), "checkpoints"], check=True, timeout=60)
    assert S3Files()._files.exists("checkpoints")
