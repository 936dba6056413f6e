"""Configuration becomes frozen values, and every fault of it one message (rules B1, B4, K12)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harvest_core.config import Config, describe, load, redacted, structure_table
from harvest_core.duration import Duration
from harvest_core.plugin import NoConfig, Plugin


@attrs.frozen
class Part:
    size: int = 1


@attrs.frozen
class Sample:
    """A table with each type of field that plugins use."""

    threshold: float | None = None
    limit: int = 5
    on: bool = True
    source: str | None = None
    refresh: Duration = attrs.field(default=Duration(5.0))
    names: list[str] = attrs.field(factory=list)
    allowlist: list[str] | None = None
    fixed: tuple[str, ...] = ()
    kinds: frozenset[str] = frozenset()
    labels: dict[str, str] = attrs.field(factory=dict)
    queues: dict[str, int] = attrs.field(factory=dict)
    anything: Any = None
    parts: list[Part] = attrs.field(factory=list)
    low: int = attrs.field(default=0, validator=attrs.validators.ge(0))
    high: int = attrs.field(default=9, validator=attrs.validators.le(9))


def sample_classes(enabled):
    return {"sample": Sample} if "sample" in enabled else {}


def faults(source, **options):
    return [str(problem) for problem in load(source, **options)[1] if not problem.warning]


def warnings(source, **options):
    return [str(problem) for problem in load(source, **options)[1] if problem.warning]


def written(folder: Path, text: str) -> Path:
    path = folder / "harvest.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_nothing_configured_is_all_defaults():
    """B4: without a source every key has its default, and the beat is a third of worker_ttl (K12)."""
    config, problems = load(None)
    assert problems == []
    assert config == Config(origins={key: "default" for key, _, _ in describe(config)})
    assert (config.worker.poll_interval, config.worker.beat_interval) == (0.5, 10.0)
    assert (config.harvest.dsn, config.harvest.schema, config.worker.queues) == (None, "harvest", ("default",))


def test_a_file_becomes_values(tmp_path):
    """B4: a TOML file gives kernel tables, raw plugin tables and the plugins' own classes."""
    path = written(
        tmp_path,
        """
        [harvest]
        app = "app:app"
        plugins = ["sample", "other"]
        [worker]
        queues = ["nightly-export", "user-email"]
        poll_interval = "250ms"
        worker_ttl = "9s"
        [plugins.sample]
        threshold = 400
        queues = {user-email = 3}
        [plugins.other]
        free = [1, "two"]
        """,
    )
    config, problems = load(path, plugin_classes=sample_classes)
    assert problems == []
    assert (config.origin, config.directory) == ("harvest.toml", tmp_path)
    assert config.worker.queues == ("nightly-export", "user-email")
    assert (config.worker.poll_interval, config.worker.beat_interval) == (0.25, 3.0)
    assert config.configured == {"sample": Sample(threshold=400.0, queues={"user-email": 3})}
    assert config.plugins["other"] == {"free": [1, "two"]}


def test_a_mapping_works_wherever_a_file_does():
    """B3, B4: in a mapping, plugins may be objects, and the environment has no say over it."""

    class Mine(Plugin):
        slug = "mine"

    mine = Mine()
    source = {"harvest": {"plugins": [mine, "sample"]}, "plugins": {"mine": {}, "sample": {"limit": 1}}}
    environ = {"HARVEST_DSN": "postgresql://elsewhere/db", "HARVEST_WORKER_QUEUE": "x"}
    config, problems = load(source, environ=environ, plugin_classes=sample_classes)
    assert problems == []
    assert config.harvest.plugins == (mine, "sample")
    assert config.harvest.dsn is None
    assert config.origin == "configuration"
    assert config.origins["plugins.sample.limit"] == "configuration"


def test_every_bad_key_of_a_file_is_told_at_once(tmp_path):
    """B1, B4: unknown, mistyped and out-of-range keys, each with file, dotted key, finding, allowance, near match."""
    path = written(
        tmp_path,
        """
        worke = 1
        [harvest]
        app = "no-colon"
        schema = "pg_mine"
        plugins = ["sample", 5]
        notify = "false"
        name = "x"
        [worker]
        concurency = 5
        concurrency = "8"
        queues = ["a", "a"]
        poll_interval = "2h"
        shutdown_grace = "soon"
        name = " "
        [plugins.sample]
        """,
    )
    assert warnings(path) == [], "nobody knows what is enabled, so no table is said to be unused"
    assert faults(path) == [
        (
            "config.out-of-range  harvest.toml: harvest.app: expected a module and its attribute, such as 'app:app', "
            "found 'no-colon' (text)"
        ),
        (
            "config.out-of-range  harvest.toml: harvest.schema: expected a lower case name of at most 40 letters, "
            "digits and underscores that does not start with 'pg_', found 'pg_mine' (text)"
        ),
        (
            "config.wrong-type  harvest.toml: harvest.plugins[1]: expected the name of a plugin or a plugin object, "
            "found 5 (whole number)"
        ),
        "config.wrong-type  harvest.toml: harvest.notify: expected true or false, found 'false' (text)",
        (
            "config.unknown-key  harvest.toml: harvest.name: no such key "
            "(known keys: app, dsn, schema, plugins, order_owner, notify, retention, pooler)"
        ),
        (
            "config.out-of-range  harvest.toml: worker.queues: expected a list of at least one queue, none of them "
            "twice, found ['a', 'a'] (list)"
        ),
        (
            "config.wrong-type  harvest.toml: worker.concurrency: expected a whole number from 1 to 10000, "
            "found '8' (text)"
        ),
        (
            'config.out-of-range  harvest.toml: worker.poll_interval: expected a length of time from "10ms" to "1h", '
            "found '2h' (text)"
        ),
        (
            'config.wrong-type  harvest.toml: worker.shutdown_grace: expected a length of time up to "1d", '
            "found 'soon' (text)"
        ),
        "config.out-of-range  harvest.toml: worker.name: "
        "expected text that is not blank, without NUL, found ' ' (text)",
        "config.unknown-key  harvest.toml: worker.concurency: no such key (did you mean 'concurrency'?)",
        "config.unknown-key  harvest.toml: worke: no such key (did you mean 'worker'?)",
    ]


def test_a_bad_key_costs_only_itself():
    """B1: the rest of a table stands, so that the build can go on and find the other faults."""
    source = {"worker": {"concurrency": 0, "queues": ["a"], "unknown": 1}, "harvest": 5}
    config, problems = load(source)
    assert len(problems) == 3
    assert (config.worker.concurrency, config.worker.queues) == (20, ("a",))
    assert config.origins["worker.concurrency"] == "default"


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("limit", "8", "expected a whole number, found '8' (text)"),
        ("limit", 2.9, "expected a whole number, found 2.9 (number)"),
        ("limit", True, "expected a whole number, found true (boolean)"),
        ("threshold", True, "expected a number, found true (boolean)"),
        ("threshold", "4.5", "expected a number, found '4.5' (text)"),
        ("limit", 1 << 64, "expected a whole number within 64 bits, found 18446744073709551616 (whole number)"),
        ("threshold", float("nan"), "expected a finite number, found nan (number)"),
        ("on", "false", "expected true or false, found 'false' (text)"),
        ("on", 1, "expected true or false, found 1 (whole number)"),
        ("source", 5, "expected text, found 5 (whole number)"),
        ("source", "a\0b", "expected text without NUL characters, in UTF-8, found 'a\\x00b' (text)"),
        (
            "refresh",
            -1,
            'expected a length of time such as "500ms", "5s", "10m", "2h" or "1d", found -1 (whole number)',
        ),
        ("refresh", {}, 'expected a length of time such as "500ms", "5s", "10m", "2h" or "1d", found a table'),
        ("names", "abc", "expected a list, found 'abc' (text)"),
        ("names", None, "expected a list, found nothing"),
        ("fixed", {"a": 1}, "expected a list, found a table"),
        ("kinds", "abc", "expected a list, found 'abc' (text)"),
        ("labels", ["a"], "expected a table, found ['a'] (list)"),
        ("labels", {1: "a"}, "expected a table whose keys are text, found a table"),
        ("low", -1, "'low' must be >= 0: -1"),
    ],
)
def test_nothing_is_converted(key, value, message):
    """B4: text is not a number, a number not a truth, text not a list; each refusal says what it found."""
    made, problems = structure_table(Sample, {key: value}, "t")
    assert [(problem.where, problem.message) for problem in problems] == [(f"t.{key}", message)]
    assert made == Sample()


def test_a_number_too_large_to_print_is_refused():
    """B4: TOML can write in hexadecimal what Python refuses to print, and what no number of a plugin can hold."""
    _, problems = structure_table(Sample, {"threshold": 1 << 20_000}, "t")
    assert [str(problem) for problem in problems] == [
        "config.out-of-range  t.threshold: expected a finite number, found a whole number too large to show"
    ]


def test_faults_inside_lists_and_tables_have_their_path():
    """B4: the dotted key leads to the item; attrs validators are told each, not only the first."""
    table = {
        "limit": 7,
        "names": ["a", 3],
        "queues": {"user-email": 1.5, "a.b": True},
        "parts": [{"size": 1}, {"size": "2", "sise": 3}],
        "low": -1,
        "high": 10,
    }
    made, problems = structure_table(Sample, table, "harvest.toml: plugins.sample")
    assert made == Sample(limit=7)
    assert [str(problem).split("plugins.sample", 1)[1] for problem in problems] == [
        ".names[1]: expected text, found 3 (whole number)",
        ".queues.user-email: expected a whole number, found 1.5 (number)",
        '.queues."a.b": expected a whole number, found true (boolean)',
        ".parts[1].size: expected a whole number, found '2' (text)",
        ".parts[1].sise: no such key (did you mean 'size'?)",
        ".low: 'low' must be >= 0: -1",
        ".high: 'high' must be <= 9: 10",
    ]


def test_values_of_each_type_are_taken():
    """B4: a whole number where a number is expected, nothing where it may be, anything untouched."""
    marker = object()
    table = {
        "threshold": 4,
        "allowlist": None,
        "fixed": ["a"],
        "kinds": ["b", "b"],
        "labels": {"gpu": "true"},
        "anything": marker,
        "refresh": "2m",
    }
    made, problems = structure_table(Sample, table, "t")
    assert problems == []
    assert made == Sample(
        threshold=4.0,
        fixed=("a",),
        kinds=frozenset("b"),
        labels={"gpu": "true"},
        anything=marker,
        refresh=Duration(120.0),
    )
    assert isinstance(made.threshold, float)


@pytest.mark.parametrize(
    ("table", "key", "good", "bad"),
    [
        ("harvest", "schema", ["a", "_1", "pgx", "a" * 40], ["", "A", "1a", "pg_a", "a" * 41, "a-b", "a\n"]),
        ("harvest", "app", ["app:app", "a.b:c.d"], ["app", "app:", ":app", "app:app ", "a b:c"]),
        ("worker", "concurrency", [1, 10_000], [0, 10_001]),
        ("worker", "poll_interval", [0.01, "1h"], [0.009, "3601s"]),
        ("worker", "worker_ttl", ["100ms", "1d"], [0, 0.09, "25h"]),
        ("worker", "shutdown_grace", [0, "1d"], ["25h"]),
        ("worker", "queues", [["a"], ["b", "a"]], [[], ["a", "a"], [" "]]),
    ],
)
def test_ranges_hold_at_their_ends(table, key, good, bad):
    """B4: the least and the most that is allowed pass, and nothing beyond."""
    for value in good:
        assert faults({table: {key: value}}) == []
    for value in bad:
        assert len(faults({table: {key: value}})) == 1


def test_a_table_without_keys_says_so():
    """B4: any key in the table of a plugin that has no configuration is a fault."""
    _, problems = structure_table(NoConfig, {"x": 1}, "harvest.toml: plugins.bare")
    assert [str(problem) for problem in problems] == [
        "config.unknown-key  harvest.toml: plugins.bare.x: no such key (this table takes no keys)"
    ]


def test_a_class_that_cannot_describe_a_table_is_a_problem():
    """B1: a plugin's broken config_class is listed with the other faults."""

    @attrs.frozen
    class Odd:
        either: int | str = 1

    messages = [str(structure_table(cls, {}, "plugins.odd")[1][0]) for cls in (Odd, dict)]
    assert messages == [
        (
            "config.unreadable-class  plugins.odd: Odd cannot describe a table: Unsupported type: int | str. "
            "Register a structure hook for it. (correct the plugin's config_class)"
        ),
        (
            "config.unreadable-class  plugins.odd: dict cannot describe a table: <class 'dict'> is not an "
            "attrs-decorated class. (correct the plugin's config_class)"
        ),
    ]


@pytest.mark.parametrize(("ttl", "beat", "accepted"), [("9s", "3s", True), (0.3, 0.1, True), ("60s", "25s", False)])
def test_a_beat_is_at_most_a_third_of_the_lease(ttl, beat, accepted):
    """K12, pgqueuer#430: a beat rarer than that lets others take the tasks of a worker that lives."""
    config, problems = load({"worker": {"worker_ttl": ttl, "beat_interval": beat}})
    if accepted:
        assert problems == []
    else:
        assert [str(problem) for problem in problems] == [
            (
                "config.out-of-range  configuration: worker.beat_interval: 25 s is more than a third of worker_ttl, "
                "60 s (a worker that beats more rarely loses tasks while it lives; leave the key out for a third)"
            )
        ]
        assert (config.worker.worker_ttl, config.worker.beat_interval) == (60.0, 20.0)


def test_tables_in_the_wrong_place():
    """B4: a table must be a table and stand where it is read."""
    source = {"harvest": {"plugins": ["sample"]}, "worker": 5, "sample": {}, "plugins": ["sample"]}
    assert faults(source) == [
        "config.wrong-type  configuration: worker: expected a table, found 5 (whole number)",
        "config.unknown-key  configuration: sample: no such key (did you mean 'plugins.sample'?)",
        (
            "config.wrong-type  configuration: plugins: expected a table, found ['sample'] (list) "
            "(the enabled plugins are named by the key plugins in [harvest])"
        ),
    ]
    assert faults({"plugins": {"weights": 5}}) == [
        "config.wrong-type  configuration: plugins.weights: expected a table, found 5 (whole number)"
    ]


def test_a_table_of_a_plugin_that_is_not_enabled_warns(tmp_path):
    """B3, B4: installed is not enabled; the table has no effect, and a slip of the name gets a near match."""
    path = written(tmp_path, '[harvest]\nplugins = ["weights"]\n[plugins.wieghts]\n[plugins.flags]\n')
    assert faults(path) == []
    assert warnings(path) == [
        (
            "config.unused-table  harvest.toml: plugins.wieghts: no enabled plugin reads this table; it has no effect "
            "(did you mean 'weights'?)"
        ),
        (
            "config.unused-table  harvest.toml: plugins.flags: no enabled plugin reads this table; it has no effect "
            "(enable it: add 'flags' to plugins in [harvest])"
        ),
    ]


def test_files_that_cannot_be_read(tmp_path):
    """B4: no file, no TOML, no UTF-8, and a folder, each in its own words."""
    missing = tmp_path / "no.toml"
    assert faults(missing) == [
        f"config.missing-file  {missing}: no such file (create it, or name another one with --config)"
    ]
    assert faults(written(tmp_path, "[harvest]\napp 'app:app'\n")) == [
        "config.syntax  harvest.toml: not TOML: Expected '=' after a key in a key/value pair (at line 2, column 5)"
    ]
    (tmp_path / "harvest.toml").write_bytes(b"\xff")
    assert faults(tmp_path / "harvest.toml") == [
        "config.syntax  harvest.toml: not TOML: 'utf-8' codec can't decode byte 0xff in position 0: invalid start byte"
    ]
    assert faults(tmp_path) == [f"config.unreadable-file  {tmp_path}: cannot be read: Is a directory"]


def test_the_command_line_wins_over_the_environment_and_that_over_the_file(tmp_path):
    """B4, oban-py 0.6.3: file < environment < command line, and each key shows where it came from."""
    path = written(
        tmp_path,
        """
        [harvest]
        dsn = "postgresql://u:hunter2@file/db"
        plugins = ["gone"]
        [worker]
        concurrency = 1
        name = "file"
        [plugins.sample]
        limit = 1
        labels = {gpu = "true", zone = "a"}
        names = ["file"]
        """,
    )
    environ = {
        "HARVEST_PLUGINS": "sample, other",
        "HARVEST_WORKER_CONCURRENCY": "2",
        "HARVEST_WORKER_NAME": "7",
        "HARVEST_WORKER_QUEUES": '["a", "b"]',
        "HARVEST_PLUGINS_SAMPLE_LIMIT": "2",
        "HARVEST_PLUGINS_SAMPLE_THRESHOLD": "400",
        "HARVEST_PLUGINS_SAMPLE_ANYTHING": "by-name",
        "HOME": "/",
    }
    overrides = [
        ("worker.concurrency", "3"),
        ("plugins.sample.labels", {"zone": "1"}),
        ("plugins.sample.queues", {"a": "3"}),
        ("plugins.sample.names", ["x", "y"]),
        ('plugins.sample.labels."a.b"', "c"),
    ]
    config, problems = load(path, environ=environ, overrides=overrides, plugin_classes=sample_classes)
    assert problems == []
    assert config.configured["sample"] == Sample(
        threshold=400.0,
        limit=2,
        names=["x", "y"],
        labels={"gpu": "true", "zone": "1", "a.b": "c"},
        queues={"a": 3},
        anything="by-name",
    )
    shown = {key: (value, origin) for key, value, origin in describe(config) if origin != "default"}
    assert shown == {
        "harvest.dsn": ("postgresql://u:***@file/db", "harvest.toml"),
        "harvest.plugins": (["sample", "other"], "environment HARVEST_PLUGINS"),
        "worker.queues": (["a", "b"], "environment HARVEST_WORKER_QUEUES"),
        "worker.concurrency": (3, "command line"),
        "worker.name": ("7", "environment HARVEST_WORKER_NAME"),
        "plugins.sample.threshold": (400.0, "environment HARVEST_PLUGINS_SAMPLE_THRESHOLD"),
        "plugins.sample.limit": (2, "environment HARVEST_PLUGINS_SAMPLE_LIMIT"),
        "plugins.sample.names": (["x", "y"], "command line"),
        "plugins.sample.labels.gpu": ("true", "harvest.toml"),
        "plugins.sample.labels.zone": ("1", "command line"),
        'plugins.sample.labels."a.b"': ("c", "command line"),
        "plugins.sample.queues.a": (3, "command line"),
        "plugins.sample.anything": ("by-name", "environment HARVEST_PLUGINS_SAMPLE_ANYTHING"),
    }
    assert ("plugins.sample.refresh", 5.0, "default") in describe(config)


def test_a_bad_value_names_the_source_it_came_from():
    """B4: a fault is told of the environment or the command line where those set the key."""
    environ = {"HARVEST_WORKER_CONCURRENCY": "many", "HARVEST_DSN": "", "HARVEST_PLUGINS": "[flags, weights]"}
    overrides = [("worker.concurency", "5"), ("worker", "5"), ("not a key", "5")]
    assert faults(None, environ=environ, overrides=overrides[:1] + overrides[2:]) == [
        "config.syntax  command line: not a key: not a key (write a dotted key such as worker.concurrency)",
        "config.out-of-range  environment HARVEST_DSN: harvest.dsn: "
        "expected text that is not blank, without NUL, found '' (text)",
        (
            "config.wrong-type  environment HARVEST_PLUGINS: harvest.plugins: expected a list, "
            "found '[flags, weights]' (text)"
        ),
        (
            "config.wrong-type  environment HARVEST_WORKER_CONCURRENCY: worker.concurrency: "
            "expected a whole number from 1 to 10000, found 'many' (text)"
        ),
        "config.unknown-key  command line: worker.concurency: no such key (did you mean 'concurrency'?)",
    ]
    assert faults(None, overrides=overrides[1:2]) == [
        "config.wrong-type  command line: worker: expected a table, found 5 (whole number)"
    ]


def test_an_unknown_variable_is_reported():
    """good_job#1771: a slip is a fault with its near match; a variable near to none may be another's and warns."""
    environ = {
        "HARVEST_WORKER_QUEUE": "a",
        "HARVEST_PLUGINS_SAMPLE_LIMITS": "1",
        "HARVEST_SERVICE_HOST": "10.0.0.1",
        "HARVEST_PLUGINS_ABSENT_KEY": "its plugin cannot be found, which is told elsewhere",
    }
    options = {"environ": environ, "overrides": [("harvest.plugins", ["sample", "absent"])]}
    assert faults(None, plugin_classes=sample_classes, **options) == [
        (
            "config.unknown-variable  environment HARVEST_PLUGINS_SAMPLE_LIMITS: no such setting; it has no effect "
            "(did you mean 'HARVEST_PLUGINS_SAMPLE_LIMIT'?)"
        ),
        (
            "config.unknown-variable  environment HARVEST_WORKER_QUEUE: no such setting; it has no effect "
            "(did you mean 'HARVEST_WORKER_QUEUES'?)"
        ),
    ]
    assert warnings(None, plugin_classes=sample_classes, **options) == [
        "config.unknown-variable  environment HARVEST_SERVICE_HOST: no such setting; it has no effect"
    ]


@pytest.mark.parametrize(
    "dsn",
    [
        "postgresql://user:s3cret@host/db",
        "postgresql://user:s3cret/with@s3cret@host/db",
        "postgres://:s3cret with space@host/db?x=a@b",
        "postgresql://host/db?user=u&password=s3cret&sslpassword=s3cret",
        "host=h password=s3cret user=u",
        "host=h password = 's3cret it\\'s s3cret' user=u",
        "host=h password=s3cret\\ s3cret user=u",
        "PASSWORD=s3cret&s3cret",
    ],
)
def test_a_password_is_never_shown(dsn):
    """B4: neither messages nor values shown hold a DSN's password, in whatever form it is written."""
    assert "s3cret" not in redacted(dsn)
    source = {"harvest": {"dsn": dsn, "app": dsn, "plugins": dsn, "order_owner": [dsn]}, "worker": {dsn: 1}}
    config, problems = load(source, overrides=[(dsn + " x", "1")])
    assert config.harvest.dsn == dsn
    assert len(problems) == 5
    assert "s3cret" not in f"{problems}{config}{describe(config)}"


@pytest.mark.parametrize("dsn", ["postgresql://user@host:5432/db", "sqlite:///tasks.db", "host=h user=u"])
def test_a_dsn_without_a_password_is_shown_whole(dsn):
    """B4: redaction leaves alone what holds no secret."""
    assert redacted(dsn) == dsn


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12) | st.sampled_from(["5s", "default"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)
KEYS = ["harvest", "worker", "plugins", "sample", *(field.name for field in attrs.fields(Sample))]
TABLES = st.dictionaries(st.sampled_from([*KEYS, "queues", "dsn", "concurrency", "beat_interval"]) | st.text(), JSON)
SOURCES = st.dictionaries(st.sampled_from(KEYS[:3]) | st.text(max_size=4), TABLES | JSON)
CHANGES = st.lists(st.tuples(st.sampled_from(["worker.queues", "plugins.sample.labels", "x"]) | st.text(), JSON))


@settings(max_examples=100, deadline=None)
@given(source=SOURCES, table=TABLES, changes=CHANGES, text=st.text())
def test_load_never_raises(source, table, changes, text):
    """B1: whatever the mapping, variables and options hold, a configuration and a list of problems come back."""
    source = {**source, "plugins": {"sample": table}}
    environ = {"HARVEST_PLUGINS": "sample", "HARVEST_PLUGINS_SAMPLE_LIMIT": text, "HARVEST_" + text: text}
    for given_source, variables in ((source, None), (None, environ)):
        config, problems = load(
            given_source, environ=variables, overrides=changes, plugin_classes=lambda _: {"sample": Sample}
        )
        assert isinstance(config.configured["sample"], Sample)
        assert all(str(problem) for problem in problems)
        assert all(origin for _, _, origin in describe(config))
        assert load(given_source, environ=variables, overrides=changes)[0].harvest == config.harvest
