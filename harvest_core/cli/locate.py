"""Find the app, the configuration and the database that a command line means.

An app is named by a positional `module:attribute`, `--app`, `HARVEST_APP` or `[harvest] app`; a file by `--config` or
as `./harvest.toml`. The app is imported under the launch, so that its plugins are made with what the command line says.
"""

from __future__ import annotations

import functools
import importlib
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import attrs
import click

from harvest_core import build as composition
from harvest_core import config as configuration
from harvest_core.app import Harvest
from harvest_core.build import Build, Launch, Setup, launch
from harvest_core.config import Config
from harvest_core.errors import BuildError, HarvestError, near_match

_DEFAULT = Path("harvest.toml")


class AppError(HarvestError):
    """The app that was named cannot be used: not found, not importable, or no `Harvest`."""


@attrs.frozen
class Source:
    """Where a command line says the app and the configuration are.

    Args:
        config: the file named by `--config`.
        app: `module:attribute`, where the command line names it.
        overrides: keys and values of `--set` and the options that stand for one.
    """

    config: Path | None = None
    app: str | None = None
    overrides: tuple[tuple[str, Any], ...] = ()

    @property
    def file(self) -> Path | None:
        """The file: the named one, or `./harvest.toml` where there is one."""
        return self.config or (_DEFAULT if _DEFAULT.exists() else None)

    def naming(self, app: str | None) -> Source:
        """Return it with the app that stands as a positional argument."""
        if app is not None and self.app not in (None, app):
            msg = f"two apps are named, {app!r} and --app {self.app!r}; name one"
            raise click.UsageError(msg)
        return attrs.evolve(self, app=app or self.app)

    def setting(self, key: str, value: Any) -> Source:
        """Return it with one more override."""
        return attrs.evolve(self, overrides=(*self.overrides, (key, value)))

    def configuration(self) -> Setup:
        """Return what file, environment and command line configure without the app; no plugin is imported."""
        config, problems = configuration.load(self.file, environ=dict(os.environ), overrides=self.overrides)
        return Setup(config, {}, tuple(problems))


def locating(function: Callable[..., None]) -> Callable[..., None]:
    """Give a command `--config`, `--app` and `--set`, and hand it them as `source`."""

    @click.option(
        "--config",
        "config_file",
        metavar="FILE",
        type=click.Path(path_type=Path),
        help="Configuration file; ./harvest.toml unless given.",
    )
    @click.option("--app", "app_name", metavar="MODULE:ATTRIBUTE", help="The app; also HARVEST_APP or [harvest] app.")
    @click.option("--set", "changes", metavar="KEY=VALUE", multiple=True, help="Lay a value over the configuration.")
    @functools.wraps(function)
    def run(*, config_file: Path | None, app_name: str | None, changes: Sequence[str], **rest: Any) -> None:
        overrides = tuple(_change(change) for change in changes)
        function(source=Source(config_file, app_name, overrides), **rest)

    return run


def load_app(source: Source, options: Sequence[tuple[str, str]] = ()) -> Harvest:
    """Import the app that source names, configured as source says.

    Args:
        source: what the command line says.
        options: plugins' own options as typed.

    Raises:
        AppError: it is not there, cannot be imported, or is no Harvest.
        click.UsageError: no app is named.
    """
    name = named_app(source)
    if name is None:
        msg = "no app is named: give MODULE:ATTRIBUTE such as app:app, --app, HARVEST_APP, or app under [harvest]"
        raise click.UsageError(msg)
    nearby = None if source.config else source.file
    token = launch.set(Launch(source.config, source.overrides, options, nearby))
    try:
        app = _imported(name)
        app.setup  # noqa: B018 - the launch holds while the app is configured
    finally:
        launch.reset(token)
    found = app.setup.config
    if nearby is not None and (found.origin, found.directory) != (nearby.name, nearby.absolute().parent):
        message = f"./{nearby} is not read: the app names its own configuration; to use it pass --config {nearby}"
        click.echo(f"warning: {message}", err=True)
    return app


def named_app(source: Source) -> str | None:
    """Return the app's name, or None where nothing names one.

    Raises:
        BuildError: the configuration that might name it is faulty.
    """
    if source.app is not None:
        return source.app
    setup = source.configuration()
    if setup.config.harvest.app is None:
        _raise_problems(setup)
    return setup.config.harvest.app


def client_build(source: Source, *, offline: bool = False) -> Build:
    """Return a build for commands that talk to the database and judge nothing by the app.

    File, environment and `--set` are enough where they name a DSN. Where they name none, or the command line names the
    app, the app's own configuration counts, so that all commands mean one database.

    Args:
        source: what the command line says.
        offline: True where no database is needed.

    Raises:
        click.UsageError: nothing says where the database is.
    """
    setup = source.configuration()
    if source.app or (setup.config.harvest.dsn is None and setup.config.harvest.app):
        return _bare(load_app(source).setup)
    _raise_problems(setup)  # a misspelt HARVEST_DSN, above all
    if source.file is None and setup.config.harvest.dsn is None and not offline:
        msg = f"no database is named: there is no {_DEFAULT} here; give --config, --app, HARVEST_APP or HARVEST_DSN"
        raise click.UsageError(msg)
    return _bare(setup)


def app_or_client_build(source: Source) -> Build:
    """Return the app's build, or where no app is named one without activities, yet with the plugins of the file."""
    if named_app(source) is not None:
        return load_app(source).build()
    client_build(source)  # refuses where no database is named
    setup = composition.configure(source.file, Launch(overrides=source.overrides))
    return composition.build(setup, {}, (), ())


def database_address(config: Config) -> str:
    """Return where the database is, without a password."""
    if config.harvest.dsn is None:
        return f"embedded PostgreSQL in {config.directory / '.harvest'}"
    return configuration.redacted(config.harvest.dsn)


def _bare(setup: Setup) -> Build:
    """Return a build without activities and plugins, whose faults are not this command's business."""
    _raise_problems(setup)
    table = attrs.evolve(setup.config.harvest, order_owner=None)  # no plugin is there to own it
    return composition.build(Setup(attrs.evolve(setup.config, harvest=table), {}, ()), {}, (), ())


def _raise_problems(setup: Setup) -> None:
    if errors := [problem for problem in setup.problems if not problem.warning]:
        raise BuildError(errors)


def _change(text: str) -> tuple[str, str]:
    key, separator, value = text.partition("=")
    if not (separator and key.strip()):
        msg = f"--set {text}: expected KEY=VALUE, such as worker.concurrency=8"
        raise click.UsageError(msg)
    return key.strip(), value


def _imported(name: str) -> Harvest:
    module_name, _, attribute = name.partition(":")
    if not (module_name and attribute):
        msg = f"app {name!r}: expected MODULE:ATTRIBUTE, such as 'app:app'"
        raise AppError(msg)
    module = _module(name, module_name)
    value: Any = module
    for part in attribute.split("."):
        if not hasattr(value, part):
            msg = f"app {name!r}: {_label(value)} has no {part!r}{_hint(part, value)}"
            raise AppError(msg)
        value = getattr(value, part)
    if not isinstance(value, Harvest):
        msg = f"app {name!r} is not a Harvest but of type {type(value).__name__}{_hint('', module)}"
        raise AppError(msg)
    return value


def _module(name: str, module_name: str) -> ModuleType:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(module_name)
    except BuildError:
        raise
    except (Exception, SystemExit) as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing and f"{module_name}.".startswith(f"{missing}."):
            near = near_match(module_name, sorted({path.stem for path in Path.cwd().glob("*.py")}))
            msg = f"app {name!r}: no module {missing!r} in {here} or on the import path{near and f'; {near}'}"
            raise AppError(msg) from None
        last = " ".join(traceback.format_exception_only(error)[-1].split())
        msg = f"app {name!r} cannot be imported: {last}{_place(error)}"
        raise AppError(msg) from error


def _place(error: BaseException) -> str:
    if isinstance(error, SyntaxError):
        return f" ({error.filename}, line {error.lineno})"
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith("<frozen") and "importlib" not in Path(frame.filename).parts
    ]
    return f" ({frames[-1].filename}, line {frames[-1].lineno})" if len(frames) > 1 else ""


def _label(value: Any) -> str:
    return f"module {value.__name__!r}" if isinstance(value, ModuleType) else f"a {type(value).__name__}"


def _hint(attribute: str, value: Any) -> str:
    apps = (
        [name for name, item in vars(value).items() if isinstance(item, Harvest)] if hasattr(value, "__dict__") else []
    )
    names = [name for name in dir(value) if not name.startswith("_")]
    near = near_match(attribute, apps) or near_match(attribute, names)
    return f"; {near}" if near else f"; its apps: {', '.join(apps)}" if apps else ""
