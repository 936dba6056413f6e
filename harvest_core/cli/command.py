"""The tree of commands, and the one place where an error becomes a message and an exit code.

Exit codes: 0 done, 1 a fault, 2 a command line that cannot be understood, 130 interrupted.
"""

from __future__ import annotations

import io
import logging
import os
import sys
from collections.abc import Sequence

import click
import psycopg

from harvest_core.cli.check import check
from harvest_core.cli.database import db
from harvest_core.cli.explain import explain
from harvest_core.cli.output import LogFormatter, fault
from harvest_core.cli.plugins import plugin
from harvest_core.cli.queue import queue
from harvest_core.cli.schedule import schedule
from harvest_core.cli.settings import config
from harvest_core.cli.task import task
from harvest_core.cli.worker import worker
from harvest_core.config import redacted
from harvest_core.errors import HarvestError


@click.group(context_settings={"help_option_names": ["--help"], "max_content_width": 100})
@click.version_option(package_name="harvest-core", prog_name="harvest")
def harvest() -> None:
    """Background work on PostgreSQL that lands on the right worker."""
    # A worker shows its log; other commands answer on stdout and log only what keeps them from it.
    handler = logging.StreamHandler()
    handler.setFormatter(LogFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(handlers=[handler])
    logging.getLogger("harvest").setLevel(logging.ERROR)


for _group in (worker, task, queue, schedule, check, config, db, plugin, explain):
    harvest.add_command(_group)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        arguments: words of the command line; None for this process's own.

    Returns:
        The exit code.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a narrow terminal must not turn an answer into a crash
    as_json = "--json" in words
    try:
        code = harvest.main(args=words, prog_name="harvest", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except click.ClickException as error:
        if as_json:
            fault(error, as_json=True)
        else:
            error.show()
        return error.exit_code
    except HarvestError as error:
        fault(error, as_json=as_json)
        return 1
    except psycopg.Error as error:
        said = redacted(str(error).strip())
        fault(HarvestError(f"the database refused: {said}"), as_json=as_json)
        return 1
    except BrokenPipeError:
        # The reader has left. Python would complain once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (click.Abort, KeyboardInterrupt):
        return 130
