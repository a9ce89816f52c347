"""Everything a job can be refused for before anything starts."""

import traceback
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from tests.unit.cli.conftest import CallMain
from trainflow.cli import preflight
from trainflow.cli.preflight import check_job, describe_job
from trainflow.data.pack import PackOptions, pack_corpus
from trainflow.data.token_corpus import TokenCorpus
from trainflow.errors import ConfigError, DataError, EntrypointError

NO_DATASET = "data.dataset=null"


@pytest.fixture
def corpus(tmp_path: Path) -> TokenCorpus:
    """A corpus of few samples."""
    (tmp_path / "text.txt").write_text(" ".join(map(str, range(400))))
    url = str(tmp_path / "corpus")
    options = PackOptions(vocab_size=300, sequence_length=16, held_out_every=10)
    pack_corpus(str(tmp_path / "text.txt"), url, options=options)
    return TokenCorpus.open(url)


def test_a_job_with_a_dataset_of_its_own_passes(job_file: Path):
    checked = check_job(job_file)
    assert checked.args.model_dump() == {"lr": 0.5}
    assert checked.num_samples == 8


def test_a_job_with_a_corpus_passes(job_file: Path, corpus: TokenCorpus):
    checked = check_job(job_file, [NO_DATASET, f"data.url={corpus.url}"])
    assert checked.num_samples == corpus.num_samples > 8


def test_a_corpus_of_exactly_one_batch_passes_and_a_smaller_one_does_not(
    job_file: Path, corpus: TokenCorpus
):
    url = f"data.url={corpus.url}"
    batch = corpus.num_samples
    check_job(job_file, [NO_DATASET, url, f"training.global_batch_size={batch}"])
    with pytest.raises(DataError) as refusal:
        check_job(job_file, [NO_DATASET, url, f"training.global_batch_size={batch + 1}"])
    for named in ("data.url", f"{batch} samples", f"training.global_batch_size = {batch + 1}"):
        assert named in str(refusal.value)


@pytest.mark.parametrize(
    ("found", "passes"),
    [
        (ModuleSpec("wandb", None, origin="/site/wandb/__init__.py"), True),
        (ModuleSpec("wandb", None), False),  # a folder that an offline run has left here
        (None, False),
    ],
)
def test_a_sink_whose_package_is_not_installed_is_refused(
    job_file: Path, monkeypatch: pytest.MonkeyPatch, found: ModuleSpec | None, *, passes: bool
):
    monkeypatch.setattr(preflight, "find_spec", {"wandb": found}.get)
    sinks = "monitoring.sinks=[{kind: wandb, folder: /data}]"
    if passes:
        check_job(job_file, [sinks])
        return
    with pytest.raises(ConfigError) as refusal:
        check_job(job_file, [sinks])
    for named in ("monitoring.sinks: got wandb", "pip install 'trainflow[sinks]'"):
        assert named in str(refusal.value)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("not_there", "there is no not_there"),
        ("not_there.inner", "ModuleNotFoundError: No module named 'not_there'"),
        ("broken_one.inner", "RuntimeError: no driver"),
        ("gone, lost.inner", "there is no gone; ModuleNotFoundError: No module named 'lost'"),
    ],
)
def test_a_module_to_preload_that_can_t_be_imported_is_refused(
    job_file: Path, name: str, reason: str
):
    Path("broken_one").mkdir()
    Path("broken_one/__init__.py").write_text("raise RuntimeError('no driver')")
    check_job(job_file, ["workers.preload=[json, tiny_job_of_a_test]"])
    with pytest.raises(ConfigError) as refusal:
        check_job(job_file, [f"workers.preload=[json, {name}]"])
    for named in (f"workers.preload: got {name}, expected modules", reason, "or leave it out"):
        assert named in str(refusal.value)


def test_a_dataset_of_less_than_one_batch_is_refused(job_file: Path):
    with pytest.raises(DataError) as refusal:
        check_job(job_file, ["training.global_batch_size=9"])
    for named in (
        "data.dataset: got 8 samples from tiny_job_of_a_test:make_points",
        "training.global_batch_size = 9",
        "lower it or return more samples",
    ):
        assert named in str(refusal.value)


def test_a_dataset_function_that_raises_is_refused_with_what_it_said(job_file: Path):
    module = Path("tiny_job_of_a_test.py")
    module.write_text(module.read_text() + "def make_nothing(args): raise OSError('no disk')\n")
    with pytest.raises(DataError, match=r"data\.dataset: got .*:make_nothing.*OSError: no disk"):
        check_job(job_file, ["data.dataset=tiny_job_of_a_test:make_nothing"])


def test_a_source_of_notices_that_can_t_be_built_is_refused(job_file: Path):
    module = Path("tiny_job_of_a_test.py")
    spots = "class Spot:\n    def poll_notice(self): return None\nclass Mute: pass\n"
    module.write_text(module.read_text() + spots)
    setting = "failures.preemption_source"
    check_job(job_file, [f"{setting}=tiny_job_of_a_test:Spot"])
    with pytest.raises(ConfigError, match=rf"^{setting}: got .*:Mute, .*; change {setting}"):
        check_job(job_file, [f"{setting}=tiny_job_of_a_test:Mute"])


@pytest.mark.parametrize("command", ["run", "validate"])
@pytest.mark.parametrize(
    ("code", "setting"),
    [
        ("raise SystemExit(0)", "entrypoint"),
        ("def make_points(args): raise SystemExit(0)", "data.dataset"),
    ],
)
def test_code_of_the_job_that_exits_is_refused(
    job_file: Path, call_main: CallMain, capsys, command: str, code: str, setting: str
):
    module = Path("tiny_job_of_a_test.py")
    module.write_text(f"{module.read_text()}{code}\n")
    assert call_main(command, job_file) == 2
    message = capsys.readouterr().err
    assert message.startswith(f"trainflow: {setting}: got tiny_job_of_a_test:")
    for named in ("raised SystemExit: 0", "; expected a ", f"change {setting}"):
        assert named in message


@pytest.mark.parametrize(
    ("environment", "named"),
    [
        ("{foo: 1}", "runtime_env.foo: got a key; expected one of conda, "),
        ("{env_vars: [A]}", "runtime_env.env_vars: got a list; expected variables by name"),
        ("{py_modules: a}", "got py_modules; expected a runtime environment .* TypeError: "),
        ("{working_dir: /no/such/folder}", "got working_dir; .* is not a valid path"),
        ("{working_dir: .}", "got working_dir; .* ValueError: "),
    ],
)
def test_a_runtime_environment_that_ray_would_refuse_or_ignore_is_refused(
    job_file: Path, environment: str, named: str
):
    with pytest.raises(ConfigError, match=named):
        check_job(job_file, [f"runtime_env={environment}"])


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("runtime_env.env_vars.PIN=4711", "got a value of type int; expected text; put it in quo"),
        ("runtime_env.env_vars={PIN: [4711]}", "got a value of type list; expected text; put it"),
        ("runtime_env.env_vars.PIN='4711", r"got text \(.*expected a YAML value; put it in quotes"),
    ],
)
def test_the_value_of_an_environment_variable_that_is_refused_is_not_said(
    job_file: Path, override: str, told: str
):
    with pytest.raises(ConfigError, match=rf"runtime_env\.env_vars\.PIN: {told}") as refusal:
        check_job(job_file, [override])
    trace = traceback.format_exception(refusal.value)
    assert not [line for line in trace if "4711" in line]


def test_a_runtime_environment_passes_and_a_plugin_s_where_plugins_are_named(
    job_file: Path, monkeypatch: pytest.MonkeyPatch
):
    settings = "runtime_env={env_vars: {A: '1'}, pip: [einops], nsight: default}"
    assert check_job(job_file, [settings]).config.runtime_env["pip"] == ["einops"]
    monkeypatch.setenv("RAY_RUNTIME_ENV_PLUGINS", "[]")
    check_job(job_file, ["runtime_env={foo: 1}"])


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ("def __getitem__(self, index): return (1, 2)", "a sample is a tuple, expected a mapping"),
        ("def __getitem__(self, index): raise KeyError('gone')", "KeyError: 'gone'"),
        ("def __getitem__(self, index): return {'text': 'words'}", "'text' holds text"),
        ("def __getitem__(self, index): return {}", "no columns"),
        ("def __getitem__(self, index): return {'x': {'y': 1}}", "'x' holds text, nothing or a"),
        ("def __getitems__(self, indices): return [{'x': 1}] * 2", "2 rows came back for one"),
        ("def __getitems__(self, indices): return {'x': [1, 2]}", "'x' doesn't hold one value"),
        ("def __getitems__(self, indices): return {'x': 1}", "'x' doesn't hold one value"),
        ("def __getitems__(self, indices): return {'x': ['words']}", "'x' holds text"),
        ("def __getitem__(self, index): return {'x': object()}", "'x' holds a value of type obj"),
        ("def __getitem__(self, index): return {'x': [[{1}]]}", "'x' holds a value of type set"),
        ("def __getitems__(self, indices): return {'x': [object()]}", "'x' holds a value of type"),
        ("def __getitem__(self, index): raise SystemExit(0)", "SystemExit: 0"),
        ("pass", "TypeError: 'Points' object is not subscriptable"),
    ],
)
def test_a_dataset_whose_first_sample_can_t_be_read_is_refused(
    body: str, named: str, job_file: Path
):
    module = Path("tiny_job_of_a_test.py")
    module.write_text(
        f"{module.read_text()}class Points:\n    def __len__(self): return 8\n    {body}\n"
        "def make_broken(args): return Points()\n"
    )
    with pytest.raises(DataError) as refusal:
        check_job(job_file, ["data.dataset=tiny_job_of_a_test:make_broken"])
    message = str(refusal.value)
    assert message.startswith("data.dataset: got a Points from tiny_job_of_a_test:make_broken")
    assert named in message
    assert "\n" not in message


@pytest.mark.parametrize("setting", ["data.url", "data.validation_url"])
def test_a_missing_corpus_is_refused_by_its_setting(setting: str, job_file: Path, tmp_path: Path):
    override = f"{setting}={tmp_path}/nowhere"
    dataset = [NO_DATASET] if setting == "data.url" else []
    with pytest.raises(DataError, match=f"^{setting}: got .*nowhere.*trainflow data pack"):
        check_job(job_file, [*dataset, override])


def test_of_two_missing_corpora_the_training_data_is_named(job_file: Path, tmp_path: Path):
    urls = [f"data.{name}={tmp_path}/nowhere" for name in ("url", "validation_url")]
    with pytest.raises(DataError, match=r"^data\.url: got "):
        check_job(job_file, [NO_DATASET, *urls])


@pytest.mark.parametrize(
    ("override", "named"),
    [
        ("entrypoint=no_such_module:train", "entrypoint: got no_such_module:train"),
        ("entrypoint=tiny_job_of_a_test:make_points", "entrypoint"),
        ("data.dataset=tiny_job_of_a_test:no_such_function", "data.dataset"),
    ],
)
def test_a_function_that_is_not_there_is_refused(override: str, named: str, job_file: Path):
    with pytest.raises(EntrypointError, match=named):
        check_job(job_file, [override])


def test_a_secret_among_the_args_is_refused_and_not_said(
    job_file: Path, call_main: CallMain, capsys
):
    module = Path("tiny_job_of_a_test.py")
    text = module.read_text().replace("lr: float", "token: SecretStr | None = None\n    lr: float")
    module.write_text(f"from pydantic import SecretStr\n{text}")
    assert call_main("validate", job_file, "--set", "args.token=hf_0123") == 2
    message = capsys.readouterr().err
    assert "args.token: got a secret; expected none" in message
    assert "hf_0123" not in message


@pytest.mark.parametrize("setting", ["args.lr", "args.rate", "training.steps"])
def test_a_wrong_setting_is_refused_by_its_name(setting: str, job_file: Path):
    with pytest.raises(ConfigError, match=setting):
        check_job(job_file, [f"{setting}=wrong"])


def test_what_would_run_is_described(job_file: Path):
    text = describe_job(check_job(job_file))
    for named in ("tiny_job_of_a_test:train", '{"lr":0.5}', "10 steps of 8 samples", "0 spares"):
        assert named in text
    assert "  checkpoints none" in text.splitlines()
    assert '{"lr":-Infinity}' in describe_job(check_job(job_file, ["args.lr=-.inf"]))


def test_a_local_folder_of_checkpoints_is_the_same_for_workers_elsewhere(job_file: Path):
    checked = check_job(job_file, ["checkpoint.url=out/ckpt", "checkpoint.every_steps=5"])
    assert checked.config.checkpoint.url == str(Path.cwd() / "out/ckpt")
    assert "every 5 steps and at the end" in describe_job(checked)
    for scheme in ("file", "local"):
        checked = check_job(job_file, [f"checkpoint.url={scheme}://out/ckpt"])
        assert checked.config.checkpoint.url == str(Path.cwd() / "out/ckpt")
        url = check_job(job_file, [f"checkpoint.url={scheme}:///a/b"]).config.checkpoint.url
        assert url == "/a/b"
    url = check_job(job_file, ["checkpoint.url=memory://a-test"]).config.checkpoint.url
    assert url == "memory://a-test"


@pytest.mark.parametrize(
    ("override", "named"),
    [
        ("url=file://", "checkpoint.url: got 'file://', expected the path of a folder"),
        (
            "resume=~nobody-of-that-name/x",
            "checkpoint.resume: got '~nobody.*whose home isn't known",
        ),
    ],
)
def test_a_folder_of_checkpoints_that_is_none_is_refused(job_file: Path, override: str, named: str):
    with pytest.raises(ConfigError, match=named):
        check_job(job_file, [f"checkpoint.{override}"])


@pytest.mark.parametrize(
    ("settings", "often"),
    [
        ([], "at the end"),
        (["every_s=90"], "every 90 s and at the end"),
        (["every_s=auto"], "at the interval that loses least and at the end"),
        (["every_steps=5", "every_s=0.5"], "every 5 steps, every 0.5 s and at the end"),
    ],
)
def test_how_often_checkpoints_are_made_is_described(
    job_file: Path, settings: list[str], often: str
):
    overrides = [f"checkpoint.{each}" for each in ("url=out/ckpt", *settings)]
    text = describe_job(check_job(job_file, overrides))
    assert f"  checkpoints {often}, in {Path.cwd() / 'out/ckpt'}; begins at step 0" in text


def test_a_step_to_go_on_from_that_is_not_there_is_refused(job_file: Path, tmp_path: Path):
    overrides = [f"checkpoint.url={tmp_path / 'ckpt'}", "checkpoint.resume=7"]
    with pytest.raises(ConfigError, match="got step 7, expected one that is in"):
        check_job(job_file, overrides)


@pytest.mark.parametrize("name", ["./runs #2", "./a: b", "{a}/b", "ünï/🏃", "'a'/b"])
def test_a_folder_to_go_on_from_is_taken_as_it_is_typed(
    job_file: Path, tmp_path: Path, call_main: CallMain, capsys, name: str
):
    command = ("run", str(job_file), "--set", f"checkpoint.url={tmp_path / 'own'}")
    assert call_main(*command, "--resume", name) != 0
    assert f"got {Path.cwd() / name}, expected a folder" in capsys.readouterr().err


def test_another_folder_to_go_on_from_is_the_same_for_workers_elsewhere(job_file: Path):
    for other in ("out/other", "file://out/other", "local://out/other"):
        with pytest.raises(ConfigError, match=f"got {Path.cwd() / 'out/other'}, expected a folder"):
            check_job(job_file, [f"checkpoint.resume={other}"])
