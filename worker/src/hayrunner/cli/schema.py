"""`hayrunner schema`: the contract as JSON Schema and AsyncAPI."""

import sys
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from hayrunner.cli.exits import ExitCode, finish
from hayrunner.cli.options import AsJson

__all__ = ["schema"]


def schema(
    check: Annotated[bool, typer.Option("--check", help="Write nothing, name what differs.")] = (
        False
    ),
    folder: Annotated[Path, typer.Option("--folder", help="Where the files are.")] = Path(
        "schemas"
    ),
    as_json: AsJson = False,
) -> None:
    """Write the contract as JSON Schemas and AsyncAPI."""

    def work() -> ExitCode:
        from hayrunner_contracts.schema import export

        differing = export(folder, check=check)
        if as_json:
            told = {"differs" if check else "written": differing}
            sys.stdout.write(msgspec.json.encode(told).decode() + "\n")
        else:
            for path in differing:
                print(f"{'differs' if check else 'wrote'}: {path}")
            if not differing:
                print(f"{folder}: up to date")
        return ExitCode.RUN_FAILED if check and differing else ExitCode.DONE

    finish(work, as_json=as_json)
