"""Build the commands of both programs, and load all methods, so that forked processes find them.

Typer builds them at each call, of their annotations: 25 ms of CPU. Every coordinator and every site
loads the methods: 150 ms.
"""

import functools

from typer import main as typer

import fedclust.cli.main
import fedclust_service.cli
from fedclust.methods.registry import METHODS

typer.get_command = functools.cache(typer.get_command)
for _app in (fedclust.cli.main.app, fedclust_service.cli.app):
    typer.get_command(_app)
_methods = list(METHODS.values())
