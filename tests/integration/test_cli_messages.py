"""What the command line says: each wrong input its whole message, and the answers of commands that run no task."""

from __future__ import annotations

import json
import logging
import os
import re
import socket
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path

import attrs
import click
import psycopg
import pytest

from harvest_core.cli import main
from harvest_core.cli.command import harvest as tree
from harvest_core.store.postgres.migrate import MIGRATIONS, NEWEST

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "cli.md"


@attrs.frozen
class Said:
    """What a command printed, and its exit code."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> object:
        return json.loads(self.out)

    @property
    def usage(self) -> str:
        """The sentence of a usage error."""
        assert self.code == 2
        return self.err.partition("\nError: ")[2].rstrip()

    @property
    def error(self) -> str:
        """The sentence of a fault."""
        assert (self.code, self.out) == (1, "")
        return self.err.removeprefix("error: ").rstrip()


Harvest = Callable[..., Said]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Give an empty working directory; what commands do to the process is undone."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    for name in [name for name in os.environ if name.startswith("HARVEST_")]:
        monkeypatch.delenv(name)
    yield tmp_path
    logging.getLogger("harvest").setLevel(logging.NOTSET)


@pytest.fixture
def harvest(folder: Path, capfd: pytest.CaptureFixture[str]) -> Harvest:
    def run(*words: str) -> Said:
        code = main(words)
        out, err = capfd.readouterr()
        for name, module in list(sys.modules.items()):  # the next command is another process's
            if str(folder) in (getattr(module, "__file__", None) or ""):
                del sys.modules[name]
        return Said(code, out, err)

    return run


def write(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(text)


APP = """
from harvest_core import Harvest
application = Harvest.from_toml("harvest.toml")

@application.activity
async def double(x): return x * 2

@application.activity
async def train_model(): ...

@application.local_activity
def resize(path): ...
"""


@pytest.fixture
def project(folder: Path, harvest_database: str) -> str:
    """Write an app and its configuration on a real database; give its DSN."""
    write(folder, "app.py", APP)
    write(folder, "harvest.toml", f'[harvest]\napp = "app:application"\ndsn = {json.dumps(harvest_database)}\n')
    return harvest_database


# ------------------------------------------------------------------------------------------------ finding the app


def test_no_app(harvest: Harvest) -> None:
    """Without any name of an app the message lists the four ways to give one (O2)."""
    said = harvest("check")
    assert said.usage == (
        "no app is named: give MODULE:ATTRIBUTE such as app:app, --app, HARVEST_APP, or app under [harvest]"
    )


def test_two_apps(harvest: Harvest) -> None:
    """A positional app and another --app contradict each other."""
    said = harvest("check", "a:b", "--app", "c:d")
    assert said.usage == "two apps are named, 'a:b' and --app 'c:d'; name one"


PLAIN = "from harvest_core import Harvest\napp = Harvest()\n"


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("shop", "", "expected MODULE:ATTRIBUTE, such as 'app:app'"),
        ("shpo:app", "", "no module 'shpo' in {here} or on the import path; did you mean 'shop'?"),
        ("shop.x:app", "", "no module 'shop.x' in {here} or on the import path; did you mean 'shop'?"),
        ("shop:aap", PLAIN, "module 'shop' has no 'aap'; did you mean 'app'?"),
        ("shop:orders", PLAIN, "module 'shop' has no 'orders'; its apps: app"),
        ("shop:app.setpu", PLAIN, "a Harvest has no 'setpu'; did you mean 'setup'?"),
    ],
)
def test_an_app_that_is_not_there(folder: Path, harvest: Harvest, name: str, text: str, message: str) -> None:
    """A name that leads nowhere is told with a near match."""
    write(folder, "shop.py", text)
    assert harvest("check", name).error == f"app {name!r}: {message.format(here=folder)}"


@pytest.mark.parametrize(
    ("text", "said", "line"),
    [
        ("import absent_module", "ModuleNotFoundError: No module named 'absent_module'", 1),
        ("x = 1\ndef f():\n    1 / 0\nf()", "ZeroDivisionError: division by zero", 3),
        ("x = (", "SyntaxError: '(' was never closed", 1),
        ("raise SystemExit(3)", "SystemExit: 3", 1),
    ],
)
def test_an_app_that_cannot_be_imported(folder: Path, harvest: Harvest, text: str, said: str, line: int) -> None:
    """The last line of the traceback and its place are told."""
    write(folder, "shop.py", text)
    message = f"app 'shop:app' cannot be imported: {said} ({folder}/shop.py, line {line})"
    assert harvest("check", "shop:app").error == message


def test_an_app_that_is_none(folder: Path, harvest: Harvest) -> None:
    """Something else of that name is told with the apps of its module."""
    write(folder, "shop.py", PLAIN + "other = 5")
    assert harvest("check", "shop:other").error == "app 'shop:other' is not a Harvest but of type int; its apps: app"


def test_ways_to_name_an_app(folder: Path, harvest: Harvest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Positional, --app, HARVEST_APP, `[harvest] app` of ./harvest.toml or of --config: each finds it (O2)."""
    for name in ("one", "two", "three", "four", "five"):
        text = f"from harvest_core import Harvest\napp = Harvest()\n@app.activity\ndef {name}(): ...\n"
        write(folder, f"{name}_app.py", text)
    write(folder, "harvest.toml", '[harvest]\napp = "four_app:app"\n')
    write(folder, "other.toml", '[harvest]\napp = "five_app:app"\n')

    def found(*words: str) -> list[str]:
        return harvest("check", "--offline", "--json", *words).json["activities"]

    assert found() == ["four"]
    assert found("--config", "other.toml") == ["five"]
    monkeypatch.setenv("HARVEST_APP", "three_app:app")
    assert found() == ["three"]
    assert found("--app", "two_app:app") == ["two"]
    assert found("one_app:app") == ["one"]


def test_the_file_beside_an_app_without_configuration_counts(folder: Path, harvest: Harvest) -> None:
    """./harvest.toml serves an app that names none; one that names its own ignores it aloud, save by --config."""
    write(folder, "plain.py", "from harvest_core import Harvest\napp = Harvest()\n")
    write(folder, "own.py", "from harvest_core import Harvest\napp = Harvest({'worker': {'concurrency': 2}})\n")
    write(folder, "harvest.toml", "[worker]\nconcurrency = 7\n")

    def concurrency(said: Said) -> object:
        return next(row["value"] for row in said.json["config"] if row["key"] == "worker.concurrency")

    assert concurrency(harvest("check", "plain:app", "--offline", "--json")) == 7
    own = harvest("check", "own:app", "--offline", "--json")
    assert concurrency(own) == 2
    assert own.err == (
        "warning: ./harvest.toml is not read: the app names its own configuration; "
        "to use it pass --config harvest.toml\n"
    )
    assert concurrency(harvest("check", "own:app", "--offline", "--json", "--config", "harvest.toml")) == 7


def test_a_file_that_is_missing(harvest: Harvest) -> None:
    """A faulty file is told as a problem, in JSON too."""
    hint = "create it, or name another one with --config"
    message = f"cannot build: 1 problem\n  config.missing-file  absent.toml: no such file ({hint})"
    assert harvest("config", "get", "--config", "absent.toml").error == message
    said = harvest("config", "get", "--config", "absent.toml", "--json")
    assert (said.code, said.json) == (
        1,
        {
            "error": {
                "type": "BuildError",
                "message": message,
                "problems": [
                    {
                        "code": "config.missing-file",
                        "where": "absent.toml",
                        "message": "no such file",
                        "hint": hint,
                    }
                ],
            }
        },
    )


def test_a_misspelt_variable_without_a_file(folder: Path, harvest: Harvest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What HARVEST_DSN may have been meant to be is told before that no database is named (B4)."""
    monkeypatch.setenv("HARVEST_DNS", "postgresql://127.0.0.1/x")
    assert harvest("queue", "list").error == (
        "cannot build: 1 problem\n"
        "  config.unknown-variable  environment HARVEST_DNS: no such setting; it has no effect "
        "(did you mean 'HARVEST_DSN'?)"
    )


@pytest.mark.parametrize(
    ("words", "where"),
    [
        (["task", "cancel", "abc"], "[ID]..."),
        (["task", "retry", "abc"], "[ID]..."),
        (["explain", "abc"], "TASK"),
        (["db", "migrate", "--sql", "--from", "abc"], "--from"),
        (["worker", "run", "--metrics-port", "abc"], "--metrics-port"),
    ],
)
def test_what_is_no_number(harvest: Harvest, words: list[str], where: str) -> None:
    """Said in words, and not by the name of a type (O2)."""
    assert harvest(*words).usage == f"Invalid value for '{where}': 'abc' is not a valid whole number."


def test_no_database_is_named(folder: Path, harvest: Harvest) -> None:
    """A command in a folder that holds no project makes no embedded database there."""
    assert harvest("db", "migrate").usage == (
        "no database is named: there is no harvest.toml here; give --config, --app, HARVEST_APP or HARVEST_DSN"
    )
    assert list(folder.iterdir()) == []


def test_an_app_that_alone_knows_its_database_is_asked(
    folder: Path, harvest: Harvest, project: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the file names no DSN, the app's own counts, so that all commands mean one database."""
    write(folder, "harvest.toml", '[harvest]\napp = "sole:app"\n')
    write(
        folder, "sole.py", f"from harvest_core import Harvest\napp = Harvest({{'harvest': {{'dsn': {project!r}}}}})\n"
    )
    assert harvest("db", "migrate", "--json").json == {"schema": "harvest", "ran": [], "version": NEWEST}


def test_a_change_without_a_value(harvest: Harvest) -> None:
    """--set takes KEY=VALUE."""
    said = harvest("db", "migrate", "--set", "worker.concurrency")
    assert said.usage == "--set worker.concurrency: expected KEY=VALUE, such as worker.concurrency=8"


def test_usage_errors_as_json(harvest: Harvest) -> None:
    """With --json a program finds one JSON document on standard output, whatever went wrong."""
    said = harvest("task", "show", "abc", "--json")
    message = "Invalid value for 'ID': 'abc' is not a valid whole number."
    assert (said.code, said.json, said.err) == (2, {"error": {"type": "UsageError", "message": message}}, "")


# ------------------------------------------------------------------------------------------------ worker run


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--label"], "--label has no value: write --label VALUE or --label=VALUE"),
        (["--label", "--queue", "q"], "--label has no value: write --label VALUE or --label=VALUE"),
        (["--jsn"], "--jsn has no value: write --jsn VALUE or --jsn=VALUE (did you mean '--json'?)"),
        (["app:application", "more"], "Got unexpected extra argument (more)"),
        (["--metrics-port", "70000"], "Invalid value for '--metrics-port': 70000 is not in the range 0<=x<=65535."),
    ],
)
def test_a_worker_line_that_cannot_be_understood(harvest: Harvest, words: list[str], message: str) -> None:
    """Options of plugins are followed by a value; the rest is click's."""
    assert harvest("worker", "run", *words).usage == message


@pytest.mark.parametrize(
    ("words", "code", "problem"),
    [
        (
            ["--label", "gpu=true"],
            "command.unknown-option",
            "command line: no such option: --label (enable the plugin that brings it: capabilities)",
        ),
        (
            ["--acept", "vip"],
            "command.unknown-option",
            "command line: no such option: --acept (did you mean '--accept'?)",
        ),
        (
            ["--metrics-prot", "0"],
            "command.unknown-option",
            "command line: no such option: --metrics-prot (did you mean '--metrics-port'?)",
        ),
        (
            ["--set", "worker.queues=[5]"],
            "config.wrong-type",
            "command line: worker.queues[0]: expected text that is not blank, without NUL, found 5 (whole number)",
        ),
        (
            ["--set", "worker.concurency=3"],
            "config.unknown-key",
            "command line: worker.concurency: no such key (did you mean 'concurrency'?)",
        ),
    ],
)
def test_a_worker_line_that_does_not_fit_the_build(
    folder: Path, harvest: Harvest, words: list[str], code: str, problem: str
) -> None:
    """What the configuration refuses is told with its origin, an unknown option with a near match (B4, O2)."""
    write(folder, "shop.py", "from harvest_core import Harvest\napp = Harvest({'harvest': {'plugins': ['flags']}})\n")
    assert harvest("worker", "run", "shop:app", *words).error == f"cannot build: 1 problem\n  {code}  {problem}"


def test_a_pair_is_expected(folder: Path, harvest: Harvest) -> None:
    """--label takes NAME=VALUE."""
    write(
        folder,
        "shop.py",
        "from harvest_core import Harvest\napp = Harvest({'harvest': {'plugins': ['capabilities']}})\n",
    )
    assert harvest("worker", "run", "shop:app", "--label", "gpu").error == (
        "cannot build: 1 problem\n  command.option-value  command line: --label gpu: expected NAME=VALUE"
    )


def test_a_database_that_is_away_at_start(folder: Path, harvest: Harvest) -> None:
    """The worker ends with code 1 and says where it looked, without the password (O2)."""
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    write(folder, "shop.py", PLAIN)
    said = harvest("worker", "run", "shop:app", "--set", f"harvest.dsn=postgresql://u:secret@127.0.0.1:{port}/x")
    assert said.error == (
        f'the database at 127.0.0.1:{port}/x cannot be used: connection failed: connection to server at "127.0.0.1", '
        f"port {port} failed: Connection refused; check that it runs and that the DSN (HARVEST_DSN) is right"
    )


def test_a_metrics_port_in_use(folder: Path, harvest: Harvest) -> None:
    """The worker does not start without the metrics that were asked for."""
    write(folder, "shop.py", PLAIN)
    with socket.create_server(("127.0.0.1", 0)) as used:
        port = str(used.getsockname()[1])
        assert harvest("worker", "run", "shop:app", "--metrics-port", port).error == (
            f"metrics cannot be served on 127.0.0.1:{port}: Address already in use; "
            "choose another --metrics-port, or 0 for a free one"
        )


def test_help_lists_options_of_installed_plugins(harvest: Harvest) -> None:
    """`worker run --help` shows what plugins add, whether enabled or not."""
    said = harvest("worker", "run", "--help")
    section = said.out.partition("Options of plugins, for each that is enabled; may be repeated:\n")[2]
    assert re.findall(r"^  (--\w+)", section, re.M) == [
        "--label",
        "--exclusive",
        "--accept",
        "--forbid",
        "--allow",
        "--weight",
    ]


# ------------------------------------------------------------------------------------------------ tasks


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["double", "hello"], """argument 1 is not JSON: hello; write text as '"hello"'"""),
        (["double", "1", "NaN"], """argument 2 is not JSON: NaN; write text as '"NaN"'"""),
        (["double", "--kwargs", "[1]"], """--kwargs is not a JSON object; write '{"name": 1}'"""),
        (["double", "1", "--with", "vip"], """--with vip: expected OPTION=JSON, such as flags='["vip"]'"""),
        (["double", "1", "--with", "flags=vip"], """--with flags is not JSON: vip; write text as '"vip"'"""),
        (["double", "1", "--qeue", "q"], "No such option '--qeue'. Did you mean '--queue'?"),
    ],
)
def test_an_enqueue_that_cannot_be_understood(harvest: Harvest, words: list[str], message: str) -> None:
    """Arguments are JSON, and a message says how to write text."""
    assert harvest("task", "enqueue", *words).usage == message


def test_an_enqueue_that_is_refused(harvest: Harvest, project: str) -> None:
    """Names, options and payloads are checked before anything is written (K7)."""
    assert harvest("task", "enqueue", "duble", "1").error == (
        "this app has no activity 'duble' (did you mean 'double'?); pass --elsewhere where another app has it"
    )
    assert harvest("task", "enqueue", "double", r'"\u0000"').error == (
        "arguments of 'double': holds a NUL character, which PostgreSQL cannot store; "
        "remove it or encode the bytes, e.g. base64"
    )
    assert harvest("task", "enqueue", "double", "1", "--delay", "soon").error == (
        """enqueue of 'double': delay 'soon' is not a length of time such as "500ms", "5s", "10m", "2h" or "1d\""""
    )
    assert harvest("task", "enqueue", "double", "-5", "--max-attempts", "2").out == "task 1 enqueued\n"
    assert harvest("task", "enqueue", "double", "1", "--key", "k").out == "task 2 enqueued\n"
    assert harvest("task", "enqueue", "double", "1", "--key", "k").out == "task 2 of the key 'k' was there already\n"


def test_an_enqueue_without_an_app(harvest: Harvest, harvest_database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no app is named a name cannot be checked, and --elsewhere says that this is meant (K7)."""
    monkeypatch.setenv("HARVEST_DSN", harvest_database)
    monkeypatch.setenv("HARVEST_PLUGINS", "flags")
    assert harvest("task", "enqueue", "double").usage == (
        "no app is named, so 'double' cannot be checked: name the app with --app, or pass --elsewhere"
    )
    assert harvest("task", "enqueue", "double", "--elsewhere", "--with", 'flags=["b", "a"]').out == "task 1 enqueued\n"
    assert harvest("task", "show", "1", "--json").json["traits"] == {"flags": ["a", "b"]}
    assert harvest("explain", "1").out == "task 1 (double, queue default): no worker is alive\n"


TYPED = """
import zlib
from dataclasses import dataclass
from decimal import Decimal
from harvest_core import Harvest
from harvest_core.plugin import Plugin

class Zip(Plugin):
    slug = "zip"
    def encode_payload(self, data): return zlib.compress(data)
    def decode_payload(self, data): return zlib.decompress(data)

plain = Harvest.from_toml("harvest.toml")
zipped = Harvest({"harvest": {"dsn": plain.setup.config.harvest.dsn, "plugins": [Zip]}})

@dataclass
class Order:
    price: Decimal

@plain.activity
@zipped.activity
async def sell(order: Order): ...
"""


def test_arguments_are_read_by_type_hints(harvest: Harvest, project: str, folder: Path) -> None:
    """JSON on the command line stands for the activity's types, as JSON in the database does (K7)."""
    write(folder, "typed.py", TYPED.replace("@zipped.activity\n", ""))
    sell = ("task", "enqueue", "--app", "typed:plain", "sell")
    assert harvest(*sell, '{"price": "1.50"}').out == "task 1 enqueued\n"
    assert harvest("task", "show", "1", "--json").json["args"] == [{"price": "1.50"}]
    assert harvest(*sell, '{"price": 1.5}').error == (
        "arguments of 'sell': order.price: expected text that is a decimal number, found 1.5 (number)"
    )
    assert harvest(*sell).error == "arguments of 'sell': missing a required argument: 'order'"


def test_an_encoded_task_is_shown_as_it_is_stored(harvest: Harvest, project: str, folder: Path) -> None:
    """Show decodes nothing and says so."""
    write(folder, "typed.py", TYPED.replace("@plain.activity\n", ""))
    assert harvest("task", "enqueue", "--app", "typed:zipped", "sell", '{"price": "1"}').out == "task 1 enqueued\n"
    lines = harvest("task", "show", "--app", "typed:zipped", "1").out.splitlines()
    assert "args          []" in lines
    assert any(line.startswith('kwargs        {"$harvest_codec": {"by": "zip", "data": ') for line in lines)
    assert lines[-1] == "encoded       by the plugin zip; payloads are shown as they are stored, not decoded"


def test_a_task_that_is_not_known(harvest: Harvest, project: str) -> None:
    """Show and explain say the same."""
    message = "task 7 is not known: it was never enqueued here, or its retention has passed"
    assert harvest("task", "show", "7").error == message
    assert harvest("explain", "7", "--json").json == {"error": {"type": "TaskNotFoundError", "message": message}}


# ------------------------------------------------------------------------------------------------ settings, schema


def test_runtime_settings(harvest: Harvest, project: str) -> None:
    """A value is JSON where it is JSON and text where it is not; negative numbers need no quoting."""
    assert harvest("config", "get").out == "no runtime setting is set\n"
    assert harvest("config", "set", "cost_signal", "-5.5").out == "cost_signal = -5.5 (version 1)\n"
    assert harvest("config", "set", "mode", "night shift", "--json").json["value"] == "night shift"
    assert harvest("config", "set", "limits", '{"a": [1]}').code == 0
    assert harvest("config", "get", "cost_signal").out == "-5.5\n"
    assert harvest("config", "get", "mode").out == "night shift\n"
    assert harvest("config", "get", "limits", "--json").json["value"] == {"a": [1]}
    assert [row["key"] for row in harvest("config", "get", "--json").json] == ["cost_signal", "limits", "mode"]
    assert harvest("config", "get").out.splitlines()[:2] == [
        "key          value          version",
        "cost_signal  -5.5           1",
    ]
    assert harvest("config", "get", "cost_signl").error == (
        "no runtime setting 'cost_signl' is set; did you mean 'cost_signal'?"
    )
    assert harvest("config", "set", "a", "1", "--jsn").usage == "Got unexpected extra argument (--jsn)"
    assert harvest("config", "set", " ", "1").usage == "KEY is blank"
    assert harvest("config", "set", "long", "x y " * 5000 + "z").code == 0
    assert harvest("config", "get", "long").out == "x y " * 5000 + "z\n", "one line, however long"


def test_the_dsn_of_a_configured_database(harvest: Harvest, project: str) -> None:
    """It is printed as it is configured, password included, and nobody connects; there is nothing to hold."""
    assert harvest("db", "dsn") == Said(0, f"{project}\n", "")
    elsewhere = "postgresql://ada:secret@127.0.0.1:1/nowhere"
    words = ("--set", f"harvest.dsn={elsewhere}")
    assert harvest("db", "dsn", *words, "--hold") == Said(0, f"{elsewhere}\n", "")
    assert harvest("db", "dsn", *words, "--json").json == {"dsn": elsewhere, "embedded": False}


def test_migrate(folder: Path, harvest: Harvest, project: str) -> None:
    """It says what it ran, is safe to run twice, and refuses a schema that is newer (B1)."""
    other = ["--set", "harvest.schema=other"]
    (folder / "harvest.toml").open("a").write('order_owner = "weights"\n')  # of no account here
    assert harvest("db", "migrate", *other).out == (
        "".join(f"ran {name}\n" for _, name, _ in MIGRATIONS) + f"schema 'other' is at version {NEWEST}\n"
    )
    assert harvest("db", "migrate", *other).out == f"schema 'other' is at version {NEWEST}; nothing to run\n"
    with psycopg.connect(project) as connection:
        connection.execute("insert into other.migrations (version, name) values (9999, 'later')")
    assert harvest("db", "migrate", *other).error == (
        f"schema 'other' is at version 9999, newer than the {NEWEST} this Harvest knows; "
        "upgrade harvest-core here, or point the DSN at another database"
    )
    file = ("db", "migrate", "--set", "harvest.dsn=sqlite:///x.db")
    assert harvest(*file).out == "ran schema.sql\nthe SQLite file is at version 1\n"
    assert harvest(*file).out == "the SQLite file is at version 1; nothing to run\n"
    assert harvest(*file, "--sql").error == (
        '--sql needs PostgreSQL, and harvest.dsn names the sqlite backend; the page "Backends and features" of '
        "Harvest's documentation says why"
    )


def test_a_refusal_of_the_database(harvest: Harvest, project: str) -> None:
    """What PostgreSQL itself refuses is one sentence too."""
    with psycopg.connect(project) as connection:
        connection.execute("drop table harvest.settings")
    assert harvest("config", "get").error.splitlines()[0] == (
        'the database refused: relation "harvest.settings" does not exist'
    )


# ------------------------------------------------------------------------------------------------ plugins


def test_plugin_list(folder: Path, harvest: Harvest) -> None:
    """Installed, enabled, broken and missing plugins stand side by side, and none breaks the list (B3)."""
    broken = folder / "broken_plugin-0.1.dist-info"
    broken.mkdir()
    write(broken, "METADATA", "Metadata-Version: 2.1\nName: broken-plugin\nVersion: 0.1\n")
    write(broken, "entry_points.txt", "[harvest.plugins]\nbroken = nothing_of_that_name:Broken\n")
    sys.path.insert(0, str(folder))
    write(folder, "harvest.toml", '[harvest]\nplugins = ["flags", "absent"]\n')
    rows = {row["name"]: row for row in harvest("plugin", "list", "--json").json}
    assert (rows["flags"]["enabled"], rows["flags"]["fault"]) == (True, "")
    assert (rows["weights"]["enabled"], rows["weights"]["fault"]) == (False, "")
    assert (rows["absent"]["enabled"], rows["absent"]["fault"]) == (
        True,
        "it is enabled but not installed; install its distribution",
    )
    assert rows["broken"]["fault"] == (
        "nothing_of_that_name:Broken of broken-plugin 0.1 cannot be imported: ModuleNotFoundError: "
        "No module named 'nothing_of_that_name' (reinstall or upgrade it, or disable it)"
    )
    listed = harvest("plugin", "list").out
    assert re.search(r"^flags +enabled +harvest-flags \S+ +\w", listed, re.M)
    assert re.search(r"^broken +installed, broken +broken-plugin 0.1 +nothing_of_that_name:Broken of", listed, re.M)


# ------------------------------------------------------------------------------------------------ check


def test_check_of_a_sound_build(folder: Path, harvest: Harvest, project: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It shows each key with its origin, plugins, database and what was probed, and exits 0 (B1, B4)."""
    write(
        folder,
        "harvest.toml",
        (folder / "harvest.toml").read_text() + 'plugins = ["flags"]\n[plugins.flags]\naccepted = ["vip"]\n',
    )
    monkeypatch.setenv("HARVEST_WORKER_CONCURRENCY", "3")
    said = harvest("check", "--set", "worker.queues=a")
    assert said.code == 0
    rows = [re.split(r" {2,}", line) for line in said.out.splitlines()]
    assert ["harvest.plugins", '["flags"]', "harvest.toml"] in rows
    assert ["worker.concurrency", "3", "environment HARVEST_WORKER_CONCURRENCY"] in rows
    assert ["worker.queues", '["a"]', "command line"] in rows
    assert ["worker.poll_interval", "0.5", "default"] in rows
    tail = said.out.splitlines()[-5:]
    assert [tail[0], tail[1], tail[3], tail[4]] == [
        "plugins: flags",
        "activities: double, resize, train_model",
        "clauses: 1 probed on the database",
        "ok",
    ]


FAULTY = """
[harvest]
plugins = ["cost_hold"]
[worker]
concurency = 3
[plugins.cost_hold]
activities = ["resize"]
defer_threshold = 1.0
[plugins.flags]
accepted = ["x"]
"""


def test_check_lists_every_fault(folder: Path, harvest: Harvest) -> None:
    """All problems at once, warnings too; the exit code is 1 and nothing is probed (B1)."""
    write(folder, "app.py", APP)
    write(folder, "harvest.toml", FAULTY)
    said = harvest("check", "app:application")
    assert said.code == 1
    assert said.out.partition("clauses: ")[2] == (
        "not probed: the app cannot be built\n\n"
        "1 warning\n"
        "  config.unused-table  harvest.toml: plugins.flags: no enabled plugin reads this table; it has no effect "
        "(enable it: add 'flags' to plugins in [harvest])\n\n"
        "2 problems\n"
        "  config.unknown-key  harvest.toml: worker.concurency: no such key (did you mean 'concurrency'?)\n"
        "  cost_hold.local-activity  plugins.cost_hold.activities: 'resize' is a local activity and runs inline; "
        "a hold cannot defer it\n"
    )


REFUSED = """
from harvest_core import Harvest
from harvest_core.plugin import Clause, Plugin, hookimpl

class Dice(Plugin):
    slug = "dice"

    @hookimpl
    def filter_clause(self, tick):
        return [Clause("random() < 0.5", {}, lambda route: [])]

app = Harvest({"harvest": {"dsn": DSN, "plugins": [Dice]}})
"""


def test_check_probes_the_clauses(folder: Path, harvest: Harvest, harvest_database: str) -> None:
    """A clause that the database refuses is a problem; --offline does not look, and says so (B1)."""
    write(folder, "dice.py", REFUSED.replace("DSN", repr(harvest_database)))
    said = harvest("check", "dice:app", "--json")
    assert (said.code, said.json["ok"], said.json["problems"]) == (
        1,
        False,
        [
            {
                "code": "clause.refused",
                "where": "plugin 'dice'",
                "message": "hook filter_clause: the clause 'random() < 0.5' calls the volatile function random; "
                "it may depend on the route and its values only",
                "hint": 'see the page "Write a policy of your own" of Harvest\'s documentation',
            }
        ],
    )
    offline = harvest("check", "dice:app", "--offline", "--json")
    assert (offline.code, offline.json["probe"]) == (0, {"done": False, "note": "not probed: --offline"})
    missing = harvest("check", "dice:app", "--json", "--set", "harvest.schema=absent")
    assert (missing.code, missing.json["probe"]["note"]) == (
        0,
        "not probed: schema 'absent' is missing; it will be made at the first start",
    )
    with psycopg.connect(harvest_database) as connection:
        assert connection.execute("select to_regnamespace('absent')").fetchone() == (None,)


@pytest.mark.parametrize(
    ("dsn", "problem"),
    [
        (
            "postgresql://u:secret@127.0.0.1:1/x",
            "database.away  harvest.dsn: the database at 127.0.0.1:1/x cannot be used: ",
        ),
        ("sqlite:///no/x.db", "database.away  harvest.dsn: the SQLite file "),
    ],
)
def test_check_of_a_database_that_cannot_be_used(folder: Path, harvest: Harvest, dsn: str, problem: str) -> None:
    """A worker would not start, so the check fails."""
    write(folder, "shop.py", PLAIN)
    said = harvest("check", "shop:app", "--set", f"harvest.dsn={dsn}")
    assert said.code == 1
    assert said.out.partition("1 problem\n  ")[2].startswith(problem)
    assert "secret" not in said.out + said.err


def test_check_of_a_sqlite_file(folder: Path, harvest: Harvest) -> None:
    """B2: the check makes no file; explain names the page that says why it is left out."""
    write(folder, "shop.py", PLAIN)
    file = ("--set", "harvest.dsn=sqlite:///x.db", "--app", "shop:app")
    said = harvest("check", "--json", *file)
    assert (said.code, said.json["probe"]) == (
        0,
        {"done": False, "note": "not probed: x.db will be made at the first start"},
    )
    assert not (folder / "x.db").exists()
    harvest("db", "migrate", *file)
    assert harvest("check", "--json", *file).json["probe"] == {"done": True, "note": "none, the SQLite file takes none"}
    assert harvest("explain", "1", *file).error == (
        'explain needs PostgreSQL, and harvest.dsn names the sqlite backend; the page "Backends and features" of '
        "Harvest's documentation says why"
    )


def test_check_makes_no_embedded_database(folder: Path, harvest: Harvest) -> None:
    """The check of a fresh project leaves the folder as it is."""
    write(folder, "shop.py", PLAIN)
    said = harvest("check", "shop:app", "--json")
    assert (said.code, said.json["probe"]) == (
        0,
        {"done": False, "note": "not probed: the embedded database will be made at the first start"},
    )
    assert not (folder / ".harvest").exists()


# ------------------------------------------------------------------------------------------------ the page


def commands(group: click.Group, path: tuple[str, ...] = ("harvest",)) -> Iterator[tuple[str, click.Command]]:
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))
        else:
            yield " ".join((*path, name)), command


@pytest.mark.parametrize(("name", "command"), list(commands(tree)))
def test_every_command_and_option_is_documented(name: str, command: click.Command) -> None:
    """The reference page has a section for each command, with an example and every argument and option (O2)."""
    page = PAGE.read_text(encoding="utf-8")
    common = page.partition("## Common options")[2].partition("\n## ")[0]
    section = page.partition(f"\n## `{name}`\n")[2].partition("\n## ")[0]
    assert f"$ {name}" in section
    for parameter in command.params:
        if isinstance(parameter, click.Argument):
            assert f"`{parameter.make_metavar(click.Context(command)).strip('[]').replace(']...', '')}" in section
        else:
            assert any(f"`{parameter.opts[0]}" in text for text in (section, common)), f"{name} {parameter.opts[0]}"
    assert "--json" in [option for parameter in command.params for option in parameter.opts]


def test_the_page_knows_no_other_command() -> None:
    """A section whose command is gone is an error."""
    assert re.findall(r"^## `(.*)`$", PAGE.read_text(encoding="utf-8"), re.M) == [name for name, _ in commands(tree)]


def test_version(harvest: Harvest) -> None:
    """`harvest --version` tells the distribution's."""
    assert harvest("--version").out == f"harvest, version {version('harvest-core')}\n"
