"""Layers: which goes before which, who said what, and what no layer may say."""

import itertools
import json
import re
from pathlib import Path

import pytest
import yaml

from flows.config import ConfigError, parse_config
from flows.configuration import load_run
from flows.configuration.files import read_file
from flows.configuration.profiles import FOLDER, available
from flows.configuration.redaction import HIDDEN, Redactor
from flows.configuration.schema import AXES, settings
from flows.configuration.words import variable_of


@pytest.fixture
def load(tmp_path):
    """Loads a run config from text, with nothing around it but what is given."""

    def run(text="experiment: e\n", *overrides, name="run.yaml", site=None, environment=None):
        path = tmp_path / name
        path.write_text(text)
        if site is not None:
            (tmp_path / "site.yaml").write_text(site)
        return load_run(
            path, overrides, site=tmp_path / "site.yaml" if site is not None else None, environment=environment or {}
        )

    return run


def refused(load, *args, **options):
    with pytest.raises(ConfigError) as error:
        load(*args, **options)
    return str(error.value)


LAYERS = [
    ("default", {}),
    ("profile backend/docker", {"text": "experiment: e\nprofiles: {backend: docker}\n"}),
    ("site", {"site": "budgets: {setup_sec: 2}\n"}),
    ("run", {"text": "experiment: e\nprofiles: {backend: docker}\nbudgets: {setup_sec: 3}\n"}),
    ("environment", {"environment": {"TESTGRAD_BUDGETS__SETUP_SEC": "4"}}),
    ("command line", {"overrides": ["budgets.setup_sec=5"]}),
]


@pytest.mark.parametrize("highest", range(len(LAYERS)))
def test_a_higher_layer_goes_before_all_lower_ones(load, highest):
    given = {}
    for _, options in LAYERS[: highest + 1]:
        given |= options
    resolved = load(
        given.get("text", "experiment: e\n"),
        *given.get("overrides", ()),
        site=given.get("site"),
        environment=given.get("environment"),
    )
    assert resolved.origin("budgets.setup_sec").layer == LAYERS[highest][0]
    assert resolved.value("budgets.setup_sec") == [300, 900, 2, 3, 4, 5][highest]


def test_lower_layers_stay_known(load):
    resolved = load("experiment: e\nlearner: {lr: 1.0e-5}\n", "learner.lr=2e-5")
    assert [(origin.layer, float(origin.value)) for origin in resolved.origins["learner.lr"]] == [
        ("run", 1e-5),
        ("command line", 2e-5),
    ]


def test_a_value_tells_its_line(load, tmp_path):
    resolved = load("experiment: e\n\nlearner:\n  # slow\n  lr: 1.0e-5\n")
    assert str(resolved.origin("learner.lr").place) == f"{tmp_path / 'run.yaml'}:5"


def test_what_nobody_sets_counts_as_unset(load):
    """Warnings about settings that have no effect must not be told of defaults."""
    assert load().config.model_fields_set == {"experiment"}


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("experiment: e\nlearner:\n  lr: 2.0e-6\n  betas: [0.9, 0.99]\n", "run.yaml"),
        ('experiment = "e"\n[learner]\nlr = 2e-6\nbetas = [0.9, 0.99]\n', "run.toml"),
        ('{"experiment": "e", "learner": {"lr": 2e-6, "betas": [0.9, 0.99]}}', "run.json"),
    ],
)
def test_formats_say_the_same(load, text, name):
    config = load(text, name=name).config
    assert (config.learner.lr, config.learner.betas) == (2e-6, (0.9, 0.99))


def test_a_stored_run_is_read_without_the_site(load, tmp_path):
    stored = {
        "identity": "x",
        "nonce": "y",
        "config": load("experiment: e\nlearner: {ranks: 3}\n").config.model_dump(mode="json"),
    }
    resolved = load(json.dumps(stored), name="config.json", site="learner: {ranks: 7}\n")
    assert resolved.config.learner.ranks == 3


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("experiment: e\nlr: 1\n", ["run.yaml:2: lr: unknown key", "the nearest", "learner.lr"]),
        ("experiment: e\nlearner:\n  rate: 1\n", ["run.yaml:3: learner.rate: unknown key", "learner are attention"]),
        ("experiment: e\nrolout: {}\n", ["run.yaml:2: rolout: unknown key", "rollout", "serving"]),
        ("experiment: e\nlearner: 5\n", ["run.yaml:2: learner: is a section, and 5 a value", "learner.<setting>"]),
        ("experiment: e\nlearner: {lr: fast}\n", ["run.yaml:2: learner.lr:", "valid number", "'fast'"]),
        ("experiment: e\nexperiment: f\n", ["run.yaml:2: experiment: is set in line 1 already"]),
        ("experiment: e\nlearner:\n  lr: 1\n  lr: 2\n", ["run.yaml:4: learner.lr: is set in line 3 already"]),
        ("project: p\n", ["experiment: required, and missing"]),
        ("- a\n", ["expected `key: value` lines"]),
        ("a: [\n", ["not YAML"]),
        ("experiment: CHANGEME\n", ["run.yaml:1: experiment: is still 'CHANGEME'", "Names this run"]),
        (
            "experiment: e\nmodel: {path: CHANGEME}\ndata: {train: CHANGEME/x}\n",
            ["run.yaml:2: model.path: is still", "run.yaml:3: data.train: is still 'CHANGEME/x'"],
        ),
        ("experiment: e\nprofiles: {engine: tpu}\n", ["run.yaml:2: profiles.engine: there is no profile", "'tpu'"]),
        ("experiment: e\nprofiles: {motor: cpu}\n", ["profiles.motor: unknown key", "backend, engine, mode, scaffold"]),
    ],
)  # fmt: skip
def test_mistakes_are_told_with_their_place(load, text, words):
    message = refused(load, text)
    assert all(word in message for word in words), message


def test_a_template_value_may_be_given_by_a_higher_layer(load):
    assert load("experiment: CHANGEME\n", "experiment=mine").config.experiment == "mine"


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("learner.lr", ["'learner.lr'", "expected section.key=value"]),
        ("lerner.lr=1", ["lerner.lr: unknown key", "learner.lr"]),
        ("experiment.name=x", ["experiment is a value, not a section"]),
        ("learner=3", ["learner is a section"]),
        ("learner.lr=[", ["not YAML"]),
        ("scaffold.env.HOME=/x", ["scaffold.env is given as a whole"]),
        ("learner.lr=fast", ["--set learner.lr: learner.lr:", "'fast'"]),
    ],
)
def test_words_of_the_command_line_are_checked(load, override, words):
    message = refused(load, "experiment: e\n", override)
    assert all(word in message for word in words), message


def test_the_command_line_sets_sections_and_nothing(load):
    resolved = load("experiment: e\nlearner: {critic: {lr: 1.0e-4}}\n", "algorithm.kl={place: loss, coef: 0.01}")
    assert (resolved.config.algorithm.kl.place, resolved.config.algorithm.kl.coef) == ("loss", 0.01)
    assert resolved.config.learner.critic.lr == 1e-4
    assert load("experiment: e\nlearner: {critic: {lr: 1.0e-4}}\n", "learner.critic=null").config.learner.critic is None
    on_again = load("experiment: e\nlearner: {critic: null}\n", "learner.critic.lr=0.001")
    assert on_again.config.learner.critic.lr == 1e-3


@pytest.mark.parametrize(
    ("variable", "words"),
    [
        ("TESTGRAD_LEARNER_LR", ["TESTGRAD_LEARNER_LR: names no setting", "TESTGRAD_LEARNER__LR does"]),
        ("TESTGRAD_LEARNER__RATE", ["TESTGRAD_LEARNER__RATE: names no setting", "known in learner are"]),
    ],
)  # fmt: skip
def test_a_variable_that_was_meant_is_not_ignored(load, variable, words):
    message = refused(load, environment={variable: "1"})
    assert all(word in message for word in words), message


def test_variables_of_other_use_are_left_alone(load):
    load(environment={"TESTGRAD_ROOT": "/r", "TESTGRAD_DEBUG": "1", "TESTGRAD_URL": "x", "LEARNER__LR": "5"})


def test_every_setting_has_a_variable_of_its_own():
    assert len({variable_of(key) for key in settings()}) == len(settings())


@pytest.mark.parametrize("key", ["learner.lr", "experiment", "data.train", "serving.window", "model.path"])
def test_a_site_has_no_say_in_what_is_learned(load, key):
    value = {"learner.lr": 1e-5, "serving.window": 4096}.get(key, "x")
    message = refused(load, "experiment: e\n", site=yaml.safe_dump(_nested(key, value)))
    assert f"{key}: is not a site's to set" in message and "run config" in message


def test_an_empty_site_value_turns_nothing_on(load):
    resolved = load(site="sandbox:\n  root:\n  cgroup: ''\nlearner:\n  ranks: 2\n")
    assert resolved.config.sandbox.root is None and resolved.config.learner.ranks == 2
    assert resolved.origin("sandbox.cgroup").layer == "default"


def test_a_site_that_is_named_must_be_there(load, tmp_path):
    assert "there is no such file" in refused(load, environment={"TESTGRAD_SITE": str(tmp_path / "none.yaml")})
    (tmp_path / "own.yaml").write_text("learner: {ranks: 5}\n")
    assert load(environment={"TESTGRAD_SITE": str(tmp_path / "own.yaml")}).config.learner.ranks == 5


def test_the_users_own_site_is_found(load, tmp_path):
    folder = tmp_path / ".config" / "testgrad"
    folder.mkdir(parents=True)
    (folder / "site.yaml").write_text("learner: {ranks: 4}\n")
    assert load(environment={"HOME": str(tmp_path)}).config.learner.ranks == 4


def _nested(key, value):
    *sections, name = key.split(".")
    table = {name: value}
    for section in reversed(sections):
        table = {section: table}
    return table


def test_profiles_of_two_axes_never_set_the_same_but_where_a_mode_means_to():
    """Which of two would win would be an accident of their order."""
    keys = {axis: {key for name in available(axis) for key in _keys(axis, name)} for axis in AXES}
    for first, second in itertools.combinations(AXES, 2):
        assert not keys[first] & keys[second], (first, second)


def _keys(axis, name):
    return read_file(FOLDER / axis / f"{name}.yaml", "profile").values


@pytest.mark.parametrize("axis", AXES)
def test_each_profile_makes_a_configuration_that_runs(load, axis):
    for name in available(axis):
        window = "serving: {window: 16384, tool_call_parser: hermes}\n"  # agents have long answers, and call tools
        resolved = load(f"experiment: e\nprofiles: {{{axis}: {name}}}\n{window}")
        assert resolved.value(f"profiles.{axis}") == name
        assert any(layer.name == f"profile {axis}/{name}" for layer in resolved.layers)


def test_a_profile_of_ones_own_lies_beside_the_config(load, tmp_path):
    (tmp_path / "big.yaml").write_text("learner: {ranks: 6}\n")
    resolved = load("experiment: e\nprofiles: {engine: big.yaml}\n")
    assert resolved.config.learner.ranks == 6
    (tmp_path / "big.yaml").write_text("profiles: {mode: sync}\n")
    assert "a profile chooses no profiles" in refused(load, "experiment: e\nprofiles: {engine: big.yaml}\n")


def test_a_profile_can_be_chosen_by_any_layer(load):
    resolved = load("experiment: e\nprofiles: {mode: sync}\n", "profiles.mode=smoke")
    assert resolved.config.rollout.tasks_per_step == 8


@pytest.mark.parametrize("name", ["OPENAI_API_KEY", "db_password", "HF_TOKEN", "aws_secret", "X_CREDENTIAL"])
def test_secrets_are_refused_in_every_layer(load, name):
    table = f"scaffold: {{env: {{{name}: hunter22}}}}"
    for options in (
        {"text": f"experiment: e\n{table}\n"},
        {"environment": {"TESTGRAD_SCAFFOLD__ENV": f"{{{name}: a}}"}},
    ):
        message = refused(load, **options)
        assert f"scaffold.env.{name}: secrets are not configured" in message
        assert "hunter22" not in message


def test_what_is_shown_has_no_secret():
    redactor = Redactor({"WANDB_API_KEY": "s3cret-value", "SHORT_TOKEN": "abc", "PATH": "/usr/bin-long"})
    assert redactor.text("a s3cret-value b abc /usr/bin-long") == f"a {HIDDEN} b abc /usr/bin-long"
    assert redactor.text("http://me:pass@host/x") == f"http://me:{HIDDEN}@host/x"
    assert redactor.value({"x": ["s3cret-value"], "API_KEY": "zzz", "max_tokens": 3}) == {
        "x": [HIDDEN],
        "API_KEY": HIDDEN,
        "max_tokens": 3,
    }


def test_the_shipped_configs_load():
    for path in (Path(FOLDER).parent / "runs").glob("*.yaml"):
        assert load_run(path, environment={}).config.experiment == path.stem


def test_an_unknown_key_of_an_optional_section():
    with pytest.raises(ConfigError, match=r"learner\.critic\.rate: unknown key; known here are lr, lr_warmup_steps"):
        parse_config({"experiment": "e", "learner": {"critic": {"rate": 1}}}, "x")


def test_the_page_shows_a_configuration_that_loads(load):
    page = Path(FOLDER).parent.parent / "docs" / "configuration.md"
    (block,) = re.findall(r"```yaml\n(.*?)```", page.read_text(), re.DOTALL)
    config = load(block).config
    assert (config.scaffold.name, config.sandbox.backend, config.serving.window) == ("cc", "docker", 65536)
    for axis in AXES:
        (line,) = re.findall(rf"{axis}: \w+ +# (.*)", block)
        assert sorted(line.split(", ")) == available(axis)
