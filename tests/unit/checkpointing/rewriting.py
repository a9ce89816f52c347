"""Checkpoints as another writer than this release would have written them."""

import json
from pathlib import Path
from typing import Any

from trainflow.checkpointing.chunks import name_of
from trainflow.checkpointing.store import CheckpointStore


def rewrite(store: CheckpointStore, step: int, **members: Any) -> None:
    """Put other members into the manifest of a checkpoint, under names that fit."""
    folder = Path(store.url)
    before = folder / "manifests" / store.committed_manifest(step)
    document = json.loads(before.read_bytes()) | members
    before.unlink()
    data = json.dumps(document).encode()
    name = f"{step:012d}-{document['attempt']}-{name_of(data)[:16]}.json"
    (folder / "manifests" / name).write_bytes(data)
    marker = {"step": step, "manifest": name, "digest": name_of(data)}
    (folder / "committed" / f"{step:012d}.json").write_text(json.dumps(marker))
