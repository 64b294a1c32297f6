"""Rules about what was said: to the consumer, in the result, in the thread."""

from collections import defaultdict
from collections.abc import Iterator

from tests.chaos.cases import Case, Violation
from tests.chaos.plan import prompt_of

from hayrunner_contracts.codec import encode
from hayrunner_contracts.events import REPLY_REJECTED, Data, TextChunk

__all__ = ["check_answer", "check_text", "check_thread"]


def check_text(case: Case) -> Iterator[Violation]:
    """The text of every model call is what the provider sent for one request: all of it where the
    run completed, else, or where the call broke off, the beginning. Of a completed run's calls that
    count, one after the other is for the next of the steps that the provider knows."""
    if case.run.mode != "stream":
        return
    told: dict[int, str] = defaultdict(str)
    for chunk in case.of(TextChunk):
        told[chunk.step or 0] += chunk.content
    rejected = _rejected(case)
    steps: list[int] = []
    for step, text in sorted(told.items()):
        if not text:
            continue
        whole = case.completed and step not in rejected
        answered = _answered(case, text, whole=whole)
        if answered is None:
            yield case.violation("text", f"step {step}: {text[:200]!r}")
        elif whole:
            steps.append(answered)
    spoken = sorted({line["step"] for line in case.sent if line["whole"] and line["text"]})
    if case.completed and steps != spoken:
        yield case.violation("text", f"of steps {steps}, the provider spoke in {spoken}")


def _rejected(case: Case) -> set[int]:
    """The model calls that broke off and were made again."""
    return {event.data["step"] for event in case.of(Data) if event.data_type == REPLY_REJECTED}


def _answered(case: Case, text: str, *, whole: bool) -> int | None:
    """The step that the provider sent this text for, None where it never did."""
    for line in case.sent:
        is_it = line["whole"] and line["text"] == text if whole else line["text"].startswith(text)
        if is_it:
            return line["step"]
    return None


def check_answer(case: Case) -> Iterator[Violation]:
    """The answer is the text of the last reply."""
    if not case.completed:
        return
    assert case.result is not None
    whole = [line for line in case.sent if line["whole"]]
    last = max((line["step"] for line in whole), default=0)
    texts = {line["text"] for line in whole if line["step"] == last}
    if case.result.answer not in texts:
        yield case.violation("answer", f"{str(case.result.answer)[:200]!r}, step {last}")


def check_thread(case: Case) -> Iterator[Violation]:
    """The thread has the run once, with what was asked and what the result has."""
    if case.run.thread_id is None or case.result is None:
        return
    added = [one for one in case.thread if one.message_id == case.run.message_id]
    if len(added) > 1:
        yield case.violation("thread_doubled", f"{len(added)} times")
    if not added:
        if case.completed:
            yield case.violation("thread", "the run is not in its thread")
        return
    first, rest = added[0].messages[:1], added[0].messages[1:]
    if prompt_of(case.run) not in encode(first).decode():
        yield case.violation("thread", "it does not begin with what was asked")
    if case.result.messages is not None and encode(rest) != encode(case.result.messages):
        what = f"{len(rest)} messages, the result has {len(case.result.messages)} others"
        yield case.violation("thread", what)
