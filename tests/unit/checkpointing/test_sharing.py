"""Several places bring one snapshot to a store; what they make is the state, whoever took what."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.checkpointing.layouts import make_manifest
from trainflow.checkpointing import chunks as chunking
from trainflow.checkpointing.manifest import Manifest
from trainflow.checkpointing.part_reader import allocate, read_parts
from trainflow.checkpointing.sharing import Share, ShareReport, assemble, deal, is_complete
from trainflow.checkpointing.snapshot import Place, Snapshot, TensorRecord
from trainflow.checkpointing.store import CheckpointStore
from trainflow.checkpointing.uploader import upload_share
from trainflow.epochs import WHOLE, EpochId, ShardId, Version
from trainflow.errors import CheckpointError


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunking, "CHUNK_BYTES", 10)


def make_snapshot(*sizes: int) -> Snapshot:
    records = tuple(TensorRecord(f"/t{i}", "uint8", (size,), size) for i, size in enumerate(sizes))
    contents = [bytes((i * 7 + k) % 251 for k in range(size)) for i, size in enumerate(sizes)]
    skeleton = {"dict": [[f"t{i}", {"tensor": i}] for i in range(len(sizes))]}
    return Snapshot(
        Version(4, EpochId(1, 2)), WHOLE, None, skeleton, records, tuple(map(memoryview, contents))
    )


def upload(snapshot: Snapshot, store: CheckpointStore, count: int) -> list[ShareReport]:
    return [upload_share(snapshot, Share(index, count), store) for index in range(count)]


def commit(reports: list[ShareReport], store: CheckpointStore) -> Manifest:
    manifest = replace(
        make_manifest(), step=4, skeleton=reports[0].skeleton, tensors=assemble(reports)
    )
    store.commit(manifest)
    return store.read_manifest(4)


def read_back(manifest: Manifest, store: CheckpointStore) -> list[bytes]:
    wanted = {path: allocate(t.shape, t.item_bytes) for path, t in manifest.tensors.items()}
    read_parts(manifest, wanted, store.read_into, num_threads=2)
    return [part.out.tobytes() for part in wanted.values()]


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_all_shares_together_are_the_snapshot(tmp_path: Path, count: int):
    snapshot = make_snapshot(35, 0, 10, 1)
    store = CheckpointStore(str(tmp_path))
    manifest = commit(upload(snapshot, store, count), store)
    assert read_back(manifest, store) == [bytes(payload) for payload in snapshot.payloads]


def test_the_work_is_divided(tmp_path: Path):
    reports = upload(make_snapshot(100, 50), CheckpointStore(str(tmp_path)), 3)
    assert [len(report.chunks) for report in reports] == [5, 5, 5]
    assert sum(report.num_bytes_written for report in reports) == 150


def test_what_did_not_change_is_not_written_again(tmp_path: Path):
    store = CheckpointStore(str(tmp_path))
    first = make_snapshot(100, 50)
    upload(first, store, 2)
    later = replace(first, payloads=(first.payloads[0], memoryview(bytes(50))))
    reports = upload(later, store, 2)
    assert sum(report.num_bytes_written for report in reports) == 10, "five equal chunks, one write"


@given(st.lists(st.integers(0, 60), max_size=6), st.integers(1, 5))
def test_every_chunk_is_dealt_once(sizes: list[int], count: int):
    snapshot = make_snapshot(*sizes)
    dealt = [number for i in range(count) for number, _ in deal(snapshot, Share(i, count))]
    assert sorted(dealt) == list(range(sum(-(-size // 10) for size in sizes)))


def test_a_missing_share_is_seen(tmp_path: Path):
    reports = upload(make_snapshot(100), CheckpointStore(str(tmp_path)), 3)
    by_share = {report.share: report for report in reports}
    assert is_complete(by_share)
    del by_share[Share(1, 3)]
    assert not is_complete(by_share)
    with pytest.raises(CheckpointError, match="got no chunk 1, expected all of /t0"):
        assemble(list(by_share.values()))


def test_shares_of_two_divisions_are_not_complete(tmp_path: Path):
    store = CheckpointStore(str(tmp_path))
    snapshot = make_snapshot(100)
    reports = [*upload(snapshot, store, 3)[:1], *upload(snapshot, store, 2)[1:]]
    assert not is_complete({report.share: report for report in reports})


def test_shares_of_different_states_are_refused(tmp_path: Path):
    store = CheckpointStore(str(tmp_path))
    mine, _ = upload(make_snapshot(100), store, 2)
    _, other = upload(make_snapshot(101), store, 2)
    with pytest.raises(CheckpointError, match="different states"):
        assemble([mine, other])


def make_shards(*rows: int) -> list[Snapshot]:
    """Snapshots of as many ranks, of a tensor in two columns that is cut by rows, and a counter."""
    shards: list[Snapshot] = []
    for index, own in enumerate(rows):
        snapshot = make_snapshot(2 * own, 4)
        cut, counter = snapshot.tensors
        start = sum(rows[:index])
        cut = replace(cut, shape=(own, 2), place=Place((sum(rows), 2), (start, 0)))
        content = memoryview(bytes(range(2 * start, 2 * (start + own))))
        shards.append(
            replace(
                snapshot,
                shard=ShardId(index, len(rows)),
                tensors=(cut, counter),
                payloads=(content, snapshot.payloads[1]),
            )
        )
    return shards


def upload_shards(shards: list[Snapshot], store: CheckpointStore) -> list[ShareReport]:
    return [
        upload_share(shard, Share(index, len(shards)), store) for index, shard in enumerate(shards)
    ]


@pytest.mark.parametrize("rows", [(8,), (7, 7), (20, 20, 15), (3, 3, 2, 0)])
def test_shards_of_all_ranks_are_the_tensor(tmp_path: Path, rows: tuple[int, ...]):
    store = CheckpointStore(str(tmp_path))
    shards = make_shards(*rows)
    reports = upload_shards(shards, store)
    manifest = commit(reports, store)
    assert manifest.tensors["/t0"].shape == (sum(rows), 2)
    assert read_back(manifest, store) == [bytes(range(2 * sum(rows))), bytes(shards[0].payloads[1])]
    written = sum(len(report.chunks) for report in reports)
    assert written == sum(-(-2 * own // 10) for own in rows) + 1, "what all have is brought once"


def test_a_shard_that_is_missing_is_refused(tmp_path: Path):
    reports = upload_shards(make_shards(7, 7, 7), CheckpointStore(str(tmp_path)))
    with pytest.raises(CheckpointError, match="/t0: got 2 shards that overlap or leave gaps"):
        assemble([reports[0], reports[2]])


def test_shards_of_two_layouts_are_refused(tmp_path: Path):
    store = CheckpointStore(str(tmp_path))
    two, three = (upload_shards(make_shards(*rows), store) for rows in [(6, 6), (4, 4, 4)])
    with pytest.raises(CheckpointError, match="overlap or leave gaps"):
        assemble([two[0], three[1], three[2]])


def test_shards_of_different_states_are_refused(tmp_path: Path):
    first, second = upload_shards(make_shards(7, 7), CheckpointStore(str(tmp_path)))
    other = replace(second, skeleton={"dict": []})
    with pytest.raises(CheckpointError, match="different states"):
        assemble([first, other])


REGISTERED = "/registered/average/mean"


def with_paths(snapshot: Snapshot, *paths: str) -> Snapshot:
    pairs = zip(snapshot.tensors, paths, strict=True)
    return replace(snapshot, tensors=tuple(replace(each, path=path) for each, path in pairs))


def test_a_registered_tensor_of_which_two_ranks_have_different_ones_is_refused(tmp_path: Path):
    """Its first chunk comes from one of them, and its second from the other."""
    store = CheckpointStore(str(tmp_path))
    mine = with_paths(make_snapshot(20, 20), "/models/model/weight", REGISTERED)
    own = bytearray(mine.payloads[1])
    own[3] += 1
    first, _ = upload(mine, store, 2)
    _, second = upload(replace(mine, payloads=(mine.payloads[0], memoryview(own))), store, 2)
    with pytest.raises(
        CheckpointError, match=rf"step 4: {REGISTERED}: got different values on two"
    ):
        assemble([first, second])


def test_only_registered_tensors_of_which_others_bring_a_part_are_hashed(tmp_path: Path):
    store = CheckpointStore(str(tmp_path))
    snapshot = with_paths(make_snapshot(35, 35), "/models/registered/weight", REGISTERED)
    assert [report.digests.keys() for report in upload(snapshot, store, 2)] == [{REGISTERED}] * 2
    assert [report.digests for report in upload(snapshot, store, 1)] == [{}]
