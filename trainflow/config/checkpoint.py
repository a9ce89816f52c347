"""What is kept where it outlives every machine: the job file's section ``checkpoint``.

Process: any.  Pure: plain values in, a frozen configuration out.
"""

from collections.abc import Collection
from difflib import get_close_matches
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, NonNegativeInt, PositiveInt

from trainflow.config.problems import Problem, show
from trainflow.config.section import PositiveFloat, Section

_WORDS = frozenset({"auto", "never"})
_LEAST_SIMILARITY = 0.75
_EXAMPLES = "args.lr, training.seed or data.url"


def _check_folder_url(url: str) -> str:
    if "/" not in url:
        raise ValueError("auto, never, a step, or the URL or path of a folder, with a slash in it")
    return url


FolderUrl = Annotated[str, AfterValidator(_check_folder_url)]


def _check_named(url: str) -> str:
    if not url.strip():
        raise ValueError("the URL or path of a folder, or null; for the working directory say .")
    if url.strip() in _WORDS:
        raise ValueError(
            f"the URL or path of a folder, or null: {url} is for checkpoint.resume; for a folder "
            f"of that name say ./{url}"
        )
    return url


NamedUrl = Annotated[str, AfterValidator(_check_named)]


class CheckpointConfig(Section):
    """What is kept of the state where it outlives every machine of the run."""

    url: NamedUrl | None = None
    """Folder for checkpoints, as any URL that fsspec writes; null keeps none."""

    every_steps: PositiveInt | None = None
    """Steps between two checkpoints; the last step, and a stop between two steps, make one too."""

    every_s: Literal["auto"] | PositiveFloat | None = None
    """Seconds between two checkpoints, as rank 0 counts them, beside ``every_steps`` or alone;
    auto: what loses least, from the measured time to save and between failures."""

    resume: Literal["auto", "never"] | NonNegativeInt | FolderUrl = "auto"
    """Where to begin: auto takes the newest checkpoint at ``url``, if any; a step, that one; the
    URL of another folder, the newest there, unless there is one at ``url``."""

    keep_last: PositiveInt = 3
    """How many of the newest committed ones stay, whole or damaged: a run reads none of them before
    it removes others; ``trainflow checkpoints prune`` does."""

    keep_every: PositiveInt | None = None
    """Those whose step is a multiple of this stay for good."""

    keep_best: NonNegativeInt = 0
    """How many of those with the smallest ``best_metric`` stay."""

    best_metric: str | None = None
    """Name of an evaluation, as the training function calls it."""

    drill_every_s: PositiveFloat | None = None
    """Seconds between two proofs, beside training, that the newest checkpoint restores bit for bit;
    each takes memory for one state on the head's node. null makes none."""

    accept: list[str] = Field(default_factory=list[str])
    """Changed settings to go on with from a checkpoint that was made with others, by name."""

    @property
    def makes_any(self) -> bool:
        """Whether checkpoints are made while the job goes on."""
        is_timed = self.every_steps is not None or self.every_s is not None
        return self.url is not None and is_timed

    def conflicts(self, altering: Collection[str]) -> list[Problem]:
        """Return what is wrong with settings that are right one by one.

        Args:
            altering: names of the settings that a run's results depend on.
        """
        problems = [problem for name in self.accept for problem in _name_conflicts(name, altering)]
        if self.keep_best and self.best_metric is None:
            expected = "0 where checkpoint.best_metric is null"
            change = "name an evaluation in checkpoint.best_metric, or leave this out"
            problems.append(Problem("checkpoint.keep_best", str(self.keep_best), expected, change))
        return problems if self.url is not None else problems + self._conflicts_without_url()

    def _conflicts_without_url(self) -> list[Problem]:
        change = "set checkpoint.url to a folder or leave this out"
        fits = {"url"}
        if self.resume == "never":
            fits |= {"resume"}
        elif isinstance(self.resume, str) and self.resume not in _WORDS:  # a folder of its own
            fits |= {"resume", "accept"}
        return [
            Problem(
                f"checkpoint.{name}", show(value), "nothing where checkpoint.url is null", change
            )
            for name, field in type(self).model_fields.items()
            if name not in fits
            and (value := getattr(self, name)) != field.get_default(call_default_factory=True)
        ]


def _name_conflicts(name: str, altering: Collection[str]) -> list[Problem]:
    """Return what is wrong with a name in ``accept``: that it is no such setting's.

    A job's own args are known to its training function alone. Another release may have had other
    settings of a step: of those only what is misspelt is refused.
    """
    section, _, key = name.partition(".")
    if name in altering or (section == "args" and key):
        return []
    close = _most_like(name, altering)
    if section == "training" and key and close is None:
        return []
    expected = f"the name of a setting that alters a run, as {_EXAMPLES}"
    change = "remove it" if close is None else f"write {close}, or remove it"
    return [Problem("checkpoint.accept", show(name), expected, change)]


def _most_like(name: str, altering: Collection[str]) -> str | None:
    """Return the setting that was probably meant: of a section that is alike, a key that is."""
    sections: dict[str, dict[str, str]] = {}
    for setting in sorted(altering):
        section, _, key = setting.partition(".")
        sections.setdefault(section, {})[key] = setting
    section, _, key = name.partition(".")
    near = get_close_matches(section, sections, n=1, cutoff=_LEAST_SIMILARITY)
    if not near:
        return None
    keys = sections[near[0]]
    close = [key] if key in keys else get_close_matches(key, keys, n=1, cutoff=_LEAST_SIMILARITY)
    return keys[close[0]] if close else None
