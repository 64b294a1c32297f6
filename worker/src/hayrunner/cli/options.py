"""The options that several commands share."""

from typing import Annotated

import typer

__all__ = ["AsJson", "Concurrency", "Host", "Namespace", "NatsUrl", "NoProvision", "Port", "Target"]

Target = Annotated[
    str,
    typer.Argument(help="A module (my_pkg.agents), agents.py, agent.yaml or a folder of YAML."),
]
NatsUrl = Annotated[
    str | None,
    typer.Option("--nats", metavar="URL", help="Default: HAYRUNNER_NATS_URL, or localhost:4222."),
]
Namespace = Annotated[
    str | None, typer.Option("--namespace", metavar="NAME", help="Default: HAYRUNNER_NAMESPACE.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Machine form: JSON on standard output.")]
Concurrency = Annotated[
    int | None, typer.Option("--concurrency", metavar="N", help="Runs at once. Default: 32.")
]
Host = Annotated[
    str | None, typer.Option("--host", metavar="ADDRESS", help="Where health and metrics listen.")
]
Port = Annotated[
    int | None,
    typer.Option("--port", metavar="N", help="Health and metrics; 0: a free one, -1: none."),
]
NoProvision = Annotated[
    bool,
    typer.Option("--no-provision", help="Create no streams or consumers; `init` did that."),
]
