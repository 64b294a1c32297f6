"""New message ids."""

import time
import uuid

from hayrunner_contracts.message_ids import new_message_id
from hayrunner_contracts.subjects import message_id


def test_a_message_id_is_a_version_7_uuid_of_now_in_canonical_form() -> None:
    before = time.time_ns() // 1_000_000
    made = uuid.UUID(new_message_id())
    after = time.time_ns() // 1_000_000

    assert (made.version, made.variant) == (7, uuid.RFC_4122)
    assert before <= made.int >> 80 <= after
    assert message_id(str(made)) == str(made)


def test_message_ids_do_not_repeat() -> None:
    assert len({new_message_id() for _ in range(10_000)}) == 10_000
