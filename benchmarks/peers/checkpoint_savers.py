"""The peers of the checkpoint benchmark, each used as its documentation says.

Process: every rank.  Thread: training; what runs in the background is the peer's own.
"""

import shutil
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType, AsyncSaveResponse
from torch_checkpointing import CheckpointManager
from torch_checkpointing.checkpoint_process import CheckpointProcessConfig
from torch_checkpointing.config import AsyncCheckpointSaverConfig
from torch_checkpointing.storage.filesystem import LocalFileSystemStorageConfig

from benchmarks.peers.saver import Saver, Tree

_STARTED_WITHIN_S = 120


class TorchSave:
    """Rank 0 writes everything with ``torch.save``; no fsync, as its users do."""

    name = "torch_save"

    def __init__(self, folder: Path):
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def save(self, tree: Tree, step: int) -> None:
        """See `Saver`. The other ranks go on, and wait where the step's ranks meet."""
        if dist.get_rank() == 0:
            torch.save(tree, self._path(step))

    def guard(self) -> AbstractContextManager[Any]:
        """See `Saver`."""
        return nullcontext()

    def wait(self, step: int) -> None:
        """See `Saver`; nothing goes on in the background."""

    def remove(self, step: int) -> None:
        """See `Saver`."""
        remove_all_but(self._folder, self._path(step))

    def load(self, step: int, into: Tree) -> Tree | None:
        """See `Saver`."""
        del into
        return torch.load(self._path(step), weights_only=True)

    def close(self) -> None:
        """See `Saver`."""

    def _path(self, step: int) -> Path:
        return self._folder / f"{step}.pt"


class Dcp:
    """``torch.distributed.checkpoint.save``: replicated tensors are dealt over the ranks, fsync."""

    def __init__(self, folder: Path, name: str = "dcp"):
        self.name = name
        self._folder = folder

    def save(self, tree: Tree, step: int) -> None:
        """See `Saver`."""
        dcp.save(tree, checkpoint_id=self.path(step))

    def guard(self) -> AbstractContextManager[Any]:
        """See `Saver`."""
        return nullcontext()

    def wait(self, step: int) -> None:
        """See `Saver`."""

    def remove(self, step: int) -> None:
        """See `Saver`."""
        remove_all_but(self._folder, self.path(step))

    def load(self, step: int, into: Tree) -> Tree | None:
        """See `Saver`."""
        dcp.load(into, checkpoint_id=self.path(step))
        return into

    def close(self) -> None:
        """See `Saver`."""

    def path(self, step: int) -> Path:
        """Return a checkpoint's folder."""
        return self._folder / str(step)


class DcpAsync(Dcp):
    """``async_save``, with process groups of its own, as it needs beside a step's collectives."""

    def __init__(
        self,
        folder: Path,
        name: str,
        kind: AsyncCheckpointerType,
        stager: DefaultStager | None = None,
    ):
        super().__init__(folder, name)
        self._kind = kind
        self._stager = stager
        self._group = cast("dist.ProcessGroup", dist.new_group(backend="gloo"))
        self._saved: Any = None

    def save(self, tree: Tree, step: int) -> None:
        """See `Saver`; the copy is made before this returns, the rest goes on behind it."""
        response = dcp.async_save(
            tree,
            checkpoint_id=self.path(step),
            process_group=self._group,
            async_checkpointer_type=self._kind,
            async_stager=self._stager,
        )
        is_staged_apart = isinstance(response, AsyncSaveResponse)
        self._saved = response.upload_completion if is_staged_apart else response

    def wait(self, step: int) -> None:
        """See `Saver`."""
        del step
        self._saved.result()

    def close(self) -> None:
        """See `Saver`."""
        if self._stager is not None:
            self._stager.close()


class TorchCheckpointing:
    """Meta's torch_checkpointing: staged into shared memory, written by a process of its own."""

    def __init__(self, folder: Path, name: str, tree: Tree, *, all_ranks: bool):
        """Start its process and touch its memory, which it offers as ``prewarm_staging``.

        Args:
            folder: takes the checkpoints.
            name: of this variant.
            tree: of the state, as it will be saved.
            all_ranks: every rank writes the replicated state, which is the default; else rank 0.
        """
        self.name = name
        self._folder = folder
        self._saves = all_ranks or dist.get_rank() == 0
        # Its direct I/O fails on ext4, which takes aligned writes only.
        storage = LocalFileSystemStorageConfig(use_direct_io=False)
        process = CheckpointProcessConfig(subprocess_init_timeout_secs=_STARTED_WITHIN_S)
        saving = AsyncCheckpointSaverConfig(process_config=process)
        self._manager = CheckpointManager(
            CheckpointManager.Config(save=saving, storage_config=storage)
        )
        self._manager.prewarm_staging(self._payload(tree))
        self._written: Any = None

    def save(self, tree: Tree, step: int) -> None:
        """See `Saver`; a thread makes the copy, and `guard` waits for it."""
        self._written = self._manager.save(str(self._path(step)), self._payload(tree))

    def guard(self) -> AbstractContextManager[Any]:
        """See `Saver`."""
        return self._manager.lock()

    def wait(self, step: int) -> None:
        """See `Saver`."""
        del step
        self._written.result()

    def remove(self, step: int) -> None:
        """See `Saver`."""
        remove_all_but(self._folder, self._path(step))

    def load(self, step: int, into: Tree) -> Tree | None:
        """See `Saver`."""
        if not self._saves:
            return None
        return dict(self._manager.load(str(self._path(step)), into, strict=True))

    def close(self) -> None:
        """See `Saver`."""
        self._manager.close()

    def _payload(self, tree: Tree) -> Tree:
        return tree if self._saves else {}

    def _path(self, step: int) -> Path:
        return self._folder / str(step)


def make_peers(folder: Path, tree: Tree, *, all_variants: bool) -> list[Saver]:
    """Make every peer, in a folder of its own; with the variants of one only if asked for."""
    thread, process = AsyncCheckpointerType.THREAD, AsyncCheckpointerType.PROCESS
    peers: list[Saver] = [
        TorchSave(folder / "torch_save"),
        Dcp(folder / "dcp"),
        DcpAsync(folder / "dcp_async", "dcp_async:thread", thread),
        TorchCheckpointing(
            folder / "torch_checkpointing", "torch_checkpointing:rank_0", tree, all_ranks=False
        ),
    ]
    if not all_variants:
        return peers
    return [
        *peers,
        DcpAsync(
            folder / "dcp_async_kept", "dcp_async:thread_kept_memory", thread, _stager(shared=False)
        ),
        DcpAsync(folder / "dcp_async_process", "dcp_async:process", process, _stager(shared=True)),
        TorchCheckpointing(
            folder / "torch_checkpointing_all",
            "torch_checkpointing:every_rank",
            tree,
            all_ranks=True,
        ),
    ]


def _stager(*, shared: bool) -> DefaultStager:
    """Make a stager that keeps its memory; what needs CUDA is off."""
    return DefaultStager(
        StagingOptions(
            use_pinned_memory=False,
            use_shared_memory=shared,
            use_async_staging=False,
            use_non_blocking_copy=False,
        )
    )


def remove_all_but(folder: Path, kept: Path) -> None:
    """Remove a folder's entries but one."""
    for path in folder.iterdir():
        if path == kept:
            continue
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
