"""Build the commands of both programs, so that forked processes find them built.

Typer does so at each call, of their annotations: 25 ms of CPU.
"""

from __future__ import annotations

import functools

from typer import main as typer

import fedclust.cli.main
import fedclust_service.cli

typer.get_command = functools.cache(typer.get_command)
for _app in (fedclust.cli.main.app, fedclust_service.cli.app):
    typer.get_command(_app)
