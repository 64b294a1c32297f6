"""What `dev` watches, and the worker process it replaces."""

import os
from pathlib import Path

import pytest

from hayrunner.cli.reloading import WorkerProcess, watched_folder
from hayrunner.embedded import EmbeddedServer
from hayrunner_contracts.testing import eventually


def test_the_folder_of_a_file_is_watched(tmp_path: Path) -> None:
    assert watched_folder(str(tmp_path / "agents.py")) == tmp_path
    assert watched_folder(str(tmp_path / "agent.yaml")) == tmp_path
    assert watched_folder(str(tmp_path)) == tmp_path


def test_the_whole_top_package_of_a_module_is_watched_and_not_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    package = tmp_path / "watched_pkg" / "inner"
    package.mkdir(parents=True)
    for folder in (package, package.parent):
        (folder / "__init__.py").write_text("raise RuntimeError('imported')")
    assert watched_folder("watched_pkg.inner.agents") == tmp_path / "watched_pkg"
    assert watched_folder("not_written_yet.agents") == tmp_path


async def test_a_worker_process_is_replaced_and_ended(tmp_path: Path) -> None:
    target = tmp_path / "agents.py"
    target.write_text(
        "from hayrunner import Agent\n"
        "from hayrunner.demo import demo_llm\n"
        "class A(Agent):\n    name = 'a'\n    def get_llm(self): return demo_llm()\n"
    )
    async with EmbeddedServer() as server:
        worker = WorkerProcess([str(target), "--nats", server.url, "--port=-1"])
        await worker.start()
        first = worker.pid
        await worker.restart()
        second = worker.pid
        assert first is not None
        assert second not in (None, first)
        await eventually(lambda: not _is_there(first), what="the first worker to be gone")
        await worker.stop()
        assert worker.pid is None
        assert not _is_there(second or 0)


def _is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
