"""Finding the agents that a command line names: a module, a Python file, a folder of YAML.

Everything that goes wrong is a `ConfigurationError` of one line that says where and what would
be right. Importing a module runs it: a target comes from the operator, never from a request.
"""

import importlib
import importlib.util
import inspect
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from haystack import Pipeline
from haystack.components.agents import Agent as HaystackAgent
from haystack.marshal import YamlMarshaller

from hayrunner.agent import Agent
from hayrunner.errors import ConfigurationError
from hayrunner.registry import Registry

__all__ = ["load_agents"]

_YAML = (".yaml", ".yml")

# Haystack imports only its own modules from YAML; these two components are this package's. An
# operator who needs more sets HAYSTACK_DESERIALIZATION_ALLOWLIST.
_COMPONENTS = ["hayrunner.generators.openai_compatible", "hayrunner.demo.generator"]

# Frames in these are not where an author has to look.
_NOT_THE_AUTHORS = (
    "<frozen",
    str(Path(__file__).parent),
    *map(sysconfig.get_path, ("stdlib", "purelib")),
)

T = TypeVar("T")


def load_agents(target: str) -> Registry:
    """The agents of `target`: `my_pkg.agents`, `agents.py`, `agent.yaml` or a folder of YAML.

    A module's `registry` is taken as it is. Without one, its public names are looked through:
    `Agent` subclasses that are defined there and have a name, `Agent` instances, and Haystack
    Agents and Pipelines, which are called as the variable is. A YAML file holds one Haystack
    Pipeline or Agent, called as the file is.
    """
    path = Path(target)
    if path.suffix in _YAML:
        return _from_yaml([_existing(path)])
    if path.suffix == ".py":
        return _from_module(_import_file(_existing(path)), target)
    if path.is_dir() and not (target.isidentifier() and (path / "__init__.py").exists()):
        return _from_yaml(_yaml_files(path))
    if "/" in target or path.is_file():
        _existing(path)
        raise ConfigurationError(
            f"{target}: agents are a module such as my_pkg.agents, a .py or .yaml file, or a "
            "folder of .yaml files"
        )
    return _from_module(_import_module(target), target)


def _existing(path: Path) -> Path:
    if not path.is_file():
        raise ConfigurationError(f"{path}: there is no such file")
    return path


# --- Python ----------------------------------------------------------------------------------


def _import_module(name: str) -> ModuleType:
    _search_first(Path.cwd())

    def load() -> ModuleType:
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{name}.".startswith(f"{error.name}."):
                raise  # the module is there; what it imports is not
        except (TypeError, ValueError):
            if all(part.isidentifier() for part in name.split(".")):
                raise
        raise ConfigurationError(
            f"{name}: there is no such module here or on PYTHONPATH; a file is given by its "
            "path, with .py at its end"
        )

    return _told_in_a_line(load, name)


def _import_file(path: Path) -> ModuleType:
    _search_first(path.resolve().parent)
    name = path.stem if path.stem not in sys.modules else f"hayrunner_target_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None  # the suffix is .py
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Before it runs, as an import does: dataclasses and pickles look their module up.
    sys.modules[name] = module
    loader = spec.loader
    try:
        _told_in_a_line(lambda: loader.exec_module(module), str(path))
    except ConfigurationError:
        del sys.modules[name]
        raise
    return module


def _search_first(folder: Path) -> None:
    """A console script does not look into the current folder; `python -m` does."""
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def _told_in_a_line(load: Callable[[], T], where: str) -> T:
    try:
        return load()
    except ConfigurationError as error:
        raise ConfigurationError(_with_place(str(error), where)) from error
    except SyntaxError as error:
        raise ConfigurationError(
            f"{error.filename or where}, line {error.lineno}: {error.msg}"
        ) from error
    # Policy: the author's module may raise anything, and exit where it is a script; the operator
    # is told the place and the first line of it.
    except (Exception, SystemExit) as error:
        raise ConfigurationError(f"{_place(error, where)}: {_first_line(error)}") from error


def _with_place(message: str, where: str) -> str:
    return message if message.startswith(where) else f"{where}: {message}"


def _place(error: BaseException, where: str) -> str:
    """The last line of the traceback that lies in the author's code."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith(_NOT_THE_AUTHORS)]
    if not own:
        return where
    return f"{own[-1].filename}, line {own[-1].lineno}"


def _first_line(error: BaseException) -> str:
    text = str(error).strip().partition("\n")[0]
    kind = type(error).__name__
    return f"{kind}: {text}" if text else kind


def _from_module(module: ModuleType, where: str) -> Registry:
    own = getattr(module, "registry", None)
    if isinstance(own, Registry):
        if not own.names():
            raise ConfigurationError(f"{where}: its registry is empty: add an agent to it")
        return own
    registry = Registry()
    for name, agent in _found(module):
        try:
            registry.add(name, agent)
        except ConfigurationError as error:
            raise ConfigurationError(
                f"{where}: {error} (a name that begins with _ is left out)"
            ) from error
        # Policy: an author's constructor may raise anything.
        except Exception as error:
            raise ConfigurationError(f"{where}: {name}: {_first_line(error)}") from error
    if not registry.names():
        raise ConfigurationError(
            f"{where}: there is no agent in it: define a subclass of hayrunner.Agent with a name, "
            "or assign a Haystack Agent or Pipeline to a name"
        )
    return registry


def _found(module: ModuleType) -> Iterator[tuple[str, Any]]:
    """Name and agent, in the order of the module; each object once."""
    public = {name: value for name, value in vars(module).items() if not name.startswith("_")}
    seen: set[int] = set()
    instantiated = {type(value) for value in public.values() if isinstance(value, Agent)}
    for variable, value in public.items():
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, Agent):
            yield value.name or variable, value
        elif isinstance(value, HaystackAgent | Pipeline):
            yield variable, value
        elif _is_agent_class(value, module) and value not in instantiated:
            yield value.name, value


def _is_agent_class(value: Any, module: ModuleType) -> bool:
    return (
        isinstance(value, type)
        and issubclass(value, Agent)
        and value.__module__ == module.__name__
        and bool(value.name)
        and not inspect.isabstract(value)
    )


# --- YAML ------------------------------------------------------------------------------------


def _yaml_files(folder: Path) -> list[Path]:
    files = sorted(
        path
        for path in folder.iterdir()
        if path.suffix in _YAML and path.is_file() and not path.name.startswith(".")
    )
    if files:
        return files
    modules = sorted(folder.glob("*.py"))
    hint = f"; a Python file is given by its path: {modules[0]}" if modules else ""
    raise ConfigurationError(f"{folder}: the folder has no .yaml file{hint}")


def _from_yaml(files: list[Path]) -> Registry:
    registry = Registry()
    for file in files:
        try:
            registry.add(file.stem, _pipeline(file))
        except ConfigurationError as error:
            raise ConfigurationError(_with_place(str(error), str(file))) from error
        # Policy: Haystack and the components raise all kinds; the innermost says what is wrong,
        # the outer ones quote the file.
        except Exception as error:
            raise ConfigurationError(_fault_of(file, _innermost(error))) from error
    return registry


def _fault_of(file: Path, error: BaseException) -> str:
    mark: Any = getattr(error, "problem_mark", None)
    if mark is not None:
        problem = getattr(error, "problem", None) or "broken YAML"
        return f"{file}, line {mark.line + 1}: {problem}"
    return f"{file}: {_first_line(error)}"


def _pipeline(file: Path) -> Pipeline:
    data: Any = YamlMarshaller().unmarshal(file.read_text(encoding="utf-8"))
    if isinstance(data, dict) and "type" in data:
        # A single component: an Agent. As a pipeline of one it is loaded under the same rules.
        metadata = data.pop("metadata", {})
        data = {"components": {"agent": data}, "connections": [], "metadata": metadata}
    if not isinstance(data, dict) or not data.get("components"):
        raise ConfigurationError(
            "it is neither a Haystack Pipeline (components, connections) nor an Agent (type, "
            "init_parameters)"
        )
    return Pipeline.from_dict(data, allowed_modules=_COMPONENTS)


def _innermost(error: BaseException) -> BaseException:
    while error.__cause__ is not None:
        error = error.__cause__
    return error
