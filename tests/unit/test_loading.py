"""Finding agents: in modules, files and YAML; and what an operator is told when there are none."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent

import pytest

from hayrunner.adapted import HaystackAgentAdapter, PipelineAgent
from hayrunner.errors import ConfigurationError
from hayrunner.loading import load_agents

Write = Callable[[str, str], Path]

OFFLINE_AGENT = """
type: haystack.components.agents.agent.Agent
init_parameters:
  chat_generator:
    type: hayrunner.demo.generator.OfflineChatGenerator
    init_parameters: {delay_s: 0.0}
"""


@pytest.fixture(autouse=True)
def _imports_are_undone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        file = getattr(sys.modules[name], "__file__", None)
        if file is None or str(tmp_path) in file:
            del sys.modules[name]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(name: str, text: str) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text))
        return path

    return write


def refused(target: str | Path) -> str:
    with pytest.raises(ConfigurationError) as caught:
        load_agents(str(target))
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_a_file_gives_its_named_agent_classes_and_no_imported_or_nameless_ones(
    write: Write,
) -> None:
    path = write(
        "shopping.py",
        """
        from hayrunner import Agent
        from hayrunner.demo import Shop

        class Ours(Agent):
            "No name: a base class."

        class Orders(Ours):
            name = "orders"

        class _Private(Ours):
            name = "private"
        """,
    )
    assert load_agents(str(path)).names() == ["orders"]


def test_a_module_is_found_in_the_current_folder(write: Write) -> None:
    write("our_pkg/__init__.py", "")
    write("our_pkg/agents.py", "from hayrunner import Agent\nclass A(Agent):\n    name = 'a'\n")
    assert load_agents("our_pkg.agents").names() == ["a"]


def test_a_file_can_import_its_neighbours(write: Write) -> None:
    write("elsewhere/neighbour.py", "NAME = 'next_door'")
    path = write(
        "elsewhere/with_neighbour.py",
        """
        from hayrunner import Agent
        from neighbour import NAME
        class A(Agent):
            name = NAME
        """,
    )
    assert load_agents(str(path)).names() == ["next_door"]


def test_a_file_called_like_a_loaded_module_is_loaded_all_the_same(write: Write) -> None:
    path = write("types.py", "from hayrunner import Agent\nclass A(Agent):\n    name = 'a'\n")
    types = sys.modules["types"]
    assert load_agents(str(path)).names() == ["a"]
    assert sys.modules["types"] is types


def test_a_registry_is_taken_as_it_is(write: Write) -> None:
    path = write(
        "with_registry.py",
        """
        from hayrunner import Agent, Registry
        class A(Agent):
            name = "a"
        class B(Agent):
            name = "b"
        registry = Registry([A])
        """,
    )
    assert load_agents(str(path)).names() == ["a"]


def test_an_instance_stands_for_its_class_and_is_called_by_its_name_or_its_variable(
    write: Write,
) -> None:
    path = write(
        "instances.py",
        """
        from hayrunner import Agent
        class A(Agent):
            name = "a"
        class Nameless(Agent):
            pass
        first = A()
        same = first
        second = Nameless()
        """,
    )
    assert load_agents(str(path)).names() == ["a", "second"]


def test_haystack_agents_and_pipelines_are_called_as_their_variables(write: Write) -> None:
    path = write(
        "haystacks.py",
        """
        from haystack import Pipeline
        from haystack.components.agents import Agent
        from haystack.components.builders import ChatPromptBuilder
        from haystack.dataclasses import ChatMessage
        from hayrunner.demo import OfflineChatGenerator

        helper = Agent(chat_generator=OfflineChatGenerator())
        rag = Pipeline()
        rag.add_component("llm", OfflineChatGenerator())
        _indexing = Pipeline()
        """,
    )
    registry = load_agents(str(path))
    assert registry.names() == ["helper", "rag"]
    assert isinstance(registry.get("helper"), HaystackAgentAdapter)
    assert isinstance(registry.get("rag"), PipelineAgent)


def test_a_folder_of_yaml_gives_an_agent_per_file(write: Write) -> None:
    write("yaml/one.yaml", OFFLINE_AGENT)
    llm = "hayrunner.demo.generator.OfflineChatGenerator"
    write("yaml/two.yml", f"components: {{llm: {{type: {llm}, init_parameters: {{}}}}}}")
    write("yaml/.hidden.yaml", "broken: [")
    folder = write("yaml/notes.txt", "not an agent").parent
    registry = load_agents(str(folder))
    assert registry.names() == ["one", "two"]
    assert isinstance(registry.get("one"), HaystackAgentAdapter)
    assert isinstance(registry.get("two"), PipelineAgent)


def test_yaml_may_say_how_many_runs_one_worker_takes(write: Write) -> None:
    limit = "metadata: {hayrunner: {max_concurrent_runs: 3}}\n"
    llm = "hayrunner.demo.generator.OfflineChatGenerator"
    write("yaml/one.yaml", OFFLINE_AGENT + limit)
    pipeline = f"components: {{llm: {{type: {llm}, init_parameters: {{}}}}}}\n"
    folder = write("yaml/two.yaml", pipeline + limit).parent
    registry = load_agents(str(folder))
    assert [registry.get(name).max_concurrent_runs for name in ("one", "two")] == [3, 3]


def test_yaml_imports_nothing_beyond_the_allow_list(write: Write, tmp_path: Path) -> None:
    write("evil.py", f"open({str(tmp_path / 'was_here')!r}, 'w')")
    path = write("evil.yaml", "components: {x: {type: evil.Component, init_parameters: {}}}")
    message = refused(path)
    assert message.startswith(f"{path}: ")
    assert "allow" in message
    assert not (tmp_path / "was_here").exists()


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("nowhere.py", "nowhere.py: there is no such file"),
        ("nowhere.yaml", "nowhere.yaml: there is no such file"),
        ("no/where", "no/where: there is no such file"),
        ("no_such_module.agents", "no_such_module.agents: there is no such module"),
        ("no such module", "no such module: there is no such module"),
        ("notes.txt", "notes.txt: agents are a module such as my_pkg.agents"),
        (".", ".: the folder has no .yaml file; a Python file is given by its path: a.py"),
        ("..bad", "..bad: there is no such module"),
    ],
)
def test_a_target_that_is_none_is_refused_with_what_would_be_one(
    write: Write, target: str, said: str
) -> None:
    write("notes.txt", "")
    write("a.py", "")
    assert refused(target).startswith(said)


def test_a_module_without_agents_says_what_an_agent_is(write: Write) -> None:
    assert "define a subclass of hayrunner.Agent" in refused(write("empty.py", "x = 1"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = 1\nimport no_such_thing\n", ", line 2: ModuleNotFoundError: No module named"),
        ("x = 1\n\nraise ValueError('not today\\nat all')\n", ", line 3: ValueError: not today"),
        ("x = = 1", ", line 1: invalid syntax"),
        ("import sys\nsys.exit(3)\n", ", line 2: SystemExit: 3"),
        ("import msgspec\nmsgspec.json.decode(b'{')\n", ", line 2: DecodeError: "),
    ],
)
def test_a_module_that_cannot_be_imported_is_refused_with_file_and_line(
    write: Write, text: str, said: str
) -> None:
    path = write("broken.py", text)
    assert refused(path).startswith(f"{path}{said}")
    assert "broken" not in sys.modules


def test_a_failing_import_inside_a_found_module_is_not_taken_for_a_missing_module(
    write: Write,
) -> None:
    path = write("half/__init__.py", "import no_such_thing\n")
    assert refused("half").startswith(f"{path}, line 1: ModuleNotFoundError")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("class A(Agent):\n    name = 'a b'\n", "it is 'a b'"),
        ("class A(Agent):\n    name = 'a'\nclass B(Agent):\n    name = 'a'\n", "two agents"),
        ("class A(Agent):\n    name = 'a'\n    def __init__(self):\n        1 / 0\n", "a: Zero"),
        ("registry = Registry()\n", "its registry is empty"),
    ],
)
def test_agents_that_cannot_be_served_are_refused(write: Write, text: str, said: str) -> None:
    path = write("wrong.py", "from hayrunner import Agent, Registry\n" + text)
    message = refused(path)
    assert message.startswith(str(path))
    assert said in message


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: [", ", line 1: "),
        ("- 1", ": it is neither"),
        ("components: {}", ": it is neither"),
        ("components: 7", ": "),
        ("type: haystack.no_such.Agent", ": "),
    ],
)
def test_yaml_that_is_no_pipeline_is_refused(write: Write, text: str, said: str) -> None:
    path = write("wrong.yaml", text)
    assert refused(path).startswith(f"{path}{said}")
