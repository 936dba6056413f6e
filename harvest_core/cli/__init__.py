"""The command line `harvest` (rule O2): finds the app, calls the core, renders what comes back. Decides nothing."""

from harvest_core.cli.command import main

__all__ = ["main"]
