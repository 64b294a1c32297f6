"""The table of names, against the conventions' own registry, as far as a package carries it."""

import ast
from enum import Enum
from pathlib import Path

from opentelemetry.semconv._incubating.attributes import (  # pyright: ignore[reportPrivateImportUsage]
    gen_ai_attributes,
    messaging_attributes,
)
from opentelemetry.semconv.attributes import error_attributes

from hayrunner.telemetry import names

DOCS = Path(__file__).parents[3] / "docs" / "observability.md"
SOURCES = Path(__file__).parents[3] / "worker" / "src" / "hayrunner"


def registry() -> set[str]:
    found: set[str] = set()
    for module in (gen_ai_attributes, messaging_attributes, error_attributes):
        constants = vars(module).items()
        found |= {value for name, value in constants if name.isupper() and isinstance(value, str)}
    return found


def test_every_name_of_the_conventions_is_spelled_as_they_spell_it() -> None:
    own = {name for name in names.ATTRIBUTES if name.startswith("hayrunner.")}
    assert names.ATTRIBUTES - own <= registry()
    assert own


def test_no_name_of_ours_is_in_the_conventions_name_spaces() -> None:
    known = {name.split(".")[0] for name in registry()}
    assert "hayrunner" not in known


def values_of(name: str) -> type[Enum]:
    # By name: they are marked deprecated, as everything that moves to another repository.
    return vars(gen_ai_attributes)[name]


def test_names_of_operations_and_providers_are_the_conventions() -> None:
    operations = {item.value for item in values_of("GenAiOperationNameValues")}
    assert {names.INVOKE_AGENT, names.CHAT, names.EXECUTE_TOOL} <= operations
    providers = {item.value for item in values_of("GenAiProviderNameValues")}
    assert set(names.PROVIDERS.values()) - providers == {"ollama"}
    kinds = {item.value for item in messaging_attributes.MessagingOperationTypeValues}
    assert {names.SEND, names.PROCESS} <= kinds


def test_the_table_is_complete() -> None:
    """Every constant of an attribute is in one of its sets."""
    constants = {
        value
        for name, value in vars(names).items()
        if name.isupper() and isinstance(value, str) and "." in value
    }
    assert constants - {names.UNKNOWN_DESTINATION} == names.ATTRIBUTES


def test_no_attribute_is_spelled_anywhere_else() -> None:
    spelled: list[str] = []
    for path in SOURCES.rglob("*.py"):
        if path.name in ("names.py", "definitions.py"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and node.value in names.ATTRIBUTES:
                spelled.append(f"{path.name}: {node.value}")
    assert spelled == []


def test_the_document_has_every_attribute() -> None:
    text = DOCS.read_text()
    assert [name for name in sorted(names.ATTRIBUTES) if f"`{name}`" not in text] == []
