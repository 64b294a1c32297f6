"""What the package exports: sorted, whole, and there."""

import importlib
import pkgutil

import pytest

import hayrunner_contracts

MODULES = sorted(module.name for module in pkgutil.iter_modules(hayrunner_contracts.__path__))


def _by_kind(name: str) -> tuple[int, str]:
    """Constants, then classes, then functions: the order that ruff keeps too."""
    return (0 if name.isupper() else 1 if name[0].isupper() else 2, name)


def test_the_exported_members_are_sorted_and_there() -> None:
    names = hayrunner_contracts.__all__
    assert names == sorted(names, key=_by_kind)
    assert len(set(names)) == len(names)
    for name in names:
        assert hasattr(hayrunner_contracts, name)


@pytest.mark.parametrize("module", MODULES)
def test_every_module_says_what_is_public(module: str) -> None:
    loaded = importlib.import_module(f"hayrunner_contracts.{module}")
    names = loaded.__all__
    assert list(names) == sorted(names, key=_by_kind)
    for name in names:
        assert hasattr(loaded, name)


def test_every_public_type_of_the_wire_can_be_taken_from_the_package() -> None:
    for module in (
        "chunks", "commands", "documents", "errors", "events", "messages", "requests", "results",
        "threads",
    ):  # fmt: skip
        loaded = importlib.import_module(f"hayrunner_contracts.{module}")
        assert set(loaded.__all__) <= set(hayrunner_contracts.__all__), module


def test_the_client_is_there_where_nats_is() -> None:
    from hayrunner_contracts.client import RunClient

    assert hayrunner_contracts.RunClient is RunClient


def test_a_member_that_is_none_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Nonsense'"):
        _ = hayrunner_contracts.Nonsense
