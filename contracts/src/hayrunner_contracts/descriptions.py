"""What each field of the wire means: one sentence each, for the schemas and docs/contract.md."""

__all__ = ["FIELDS"]

_SEQ = {
    "seq": "Counts from 1 without gaps within one message; a `run_resumed` may count back.",
    "step": "The model call it belongs to, counted from 1.",
}
_CALL_ID = {"tool_call_id": "The call, unique within the run."}
_TOOL = {**_CALL_ID, "tool_name": "The tool's name."}
_FEEDBACK = {"feedback": "What the model is told beside the decision."}

_REQUEST = {
    "message_id": "A UUID, given once: the run is known by it, and a second request with the same "
    "id is the same run. A durable request without one gets one from its place in the stream.",
    "prompt": "The user's message, as text. Either this or `messages`.",
    "messages": "The conversation, its last turn included, in any of the message forms. Either "
    "this or `prompt`.",
    "mode": "`stream` publishes every event; `answer` only the run's frame, what concerns "
    "commands, and its result.",
    "thread_id": "The conversation that is loaded before the run and saved after it: 1 to 128 of "
    "`A-Z a-z 0-9 _ -`.",
    "user": "Who asks: opaque, 1 to 1024 characters, given to the agent.",
    "tools": "In an `answer` run: run the agent's tools. A `stream` run always has them.",
    "response_format": "A JSON Schema that the answer must satisfy. `null` clears the agent's own. "
    "References may only lead into the schema itself.",
    "options": "See the table of options.",
    "timeout_s": "Seconds from when the request came in, time in the queue included. At most one "
    "of this, `deadline` and `options.deadline`.",
    "deadline": "When the run must have ended, RFC 3339 with a zone.",
    "metadata": "Comes back in the result: at most 64 entries, keys to 128 characters, values to "
    "1024.",
    "include_messages": "Put the run's new messages into the result.",
}

_OPTIONS = {
    "max_turns": "Model calls in all: the first, every retry and every continuation. 0 makes none. "
    "A run that needs more ends with `max_turns`; the tools of the last allowed call still run.",
    "preamble": "Replaces the system prompt; `null` removes it.",
    "history": "Messages before the prompt. Given at all, even empty, memory is neither read nor "
    "written.",
    "memory": "`false`: the thread is neither loaded nor saved.",
    "documents": "Added to the agent's own context documents: given to the model with every call, "
    "never saved. Nested or flattened; `content` or `blob` is needed.",
    "temperature": "For every model call; `null` removes the agent's own.",
    "max_tokens": "Of every model call's output; `null` removes the agent's own.",
    "merge_params": "Parameters of the provider, merged over the agent's own, one level deep.",
    "replace_params": "Parameters of the provider, in place of the agent's own; `null` removes "
    "them all.",
    "tool_choice": '`auto`, `required`, `none`, or `{"name": …}` for one tool; `null` removes it. '
    "`required` holds for the first step.",
    "tool_choice_every_step": "`tool_choice` holds for every step.",
    "tool_context": "Given to tools and hooks, never to the model; every call sees its own copy.",
    "tool_concurrency": "Tools that run at once; 0 counts as 1. History keeps the order of calls.",
    "max_invalid_tool_call_retries": "How often a call of an unknown tool, or with arguments that "
    "are no object, is told to the model before the run ends with `invalid_tool_call`.",
    "record_content_telemetry": "Whether prompts and answers may stand in traces.",
    "hooks": "Names of hooks registered on the worker, after the agent's own; at most 32.",
    "deadline": "When the run must have ended, RFC 3339 with a zone.",
    "token_budget": "Tokens in all; past it the run ends with `budget_exceeded`.",
    "then_format": "A JSON Schema: the tools run first, then one structured call over what came "
    "of it. Not beside `response_format`; the agent's own gives way. In an `answer` run it needs "
    "`tools`.",
    "on_busy_thread": "Where another run uses the thread: `wait` for it, or `reject`.",
}

_SUBAGENT = "The subagent that made the call."

_RESULT = {
    "message_id": "The request's id.",
    "agent": "The agent that ran.",
    "status": "How it ended.",
    "answer": "The text, or the JSON value where there was a `response_format` or `then_format`; "
    "after a failure what there was of it, with `structured_output` the text the model wrote.",
    "finish_reason": "Why the message ended.",
    "usage": "Tokens of all model calls.",
    "model_calls": "How many model calls were made.",
    "attempts": "Which attempt ended it: more than 1 after a worker was lost.",
    "error": "Why it failed, was cancelled or was stopped.",
    "messages": "The run's new messages, where the request asked for them.",
    "last_seq": "The `seq` of `stream_end`, which gets a higher one where a worker that was taken "
    "for dead speaks at the very end; 0 for a direct request, whose events are kept nowhere.",
    "metadata": "The request's.",
    "thread_id": "The request's.",
    "requested_at": "When the request came in, RFC 3339 in UTC.",
    "started_at": "When the attempt that ended it began.",
    "ended_at": "When it ended.",
}

_AT = {"at": "When, RFC 3339 in UTC."}
_STATE = {
    "created_at": "When its first record was written.",
    "updated_at": "When its last record was written.",
    "title": "Its title.",
    "deleted": "It has no messages and takes no runs until it is restored.",
    "runs": "How many runs ever added messages.",
    "messages": "How many messages were ever added.",
}

FIELDS: dict[str, dict[str, str]] = {
    "RunRequest": _REQUEST,
    "RunOptions": _OPTIONS,
    "NamedTool": {"name": "The tool's name."},
    "RunResult": _RESULT,
    "RunFailure": {
        "code": "Stable: one of the error codes.",
        "message": "Safe to show; not to be matched on.",
        "retryable": "Whether the same request may succeed later.",
        "ref": "Finds the worker's log line with the cause.",
        "field": "The path of what was wrong in the request, as `messages[2].content[0].text`.",
    },
    "Usage": {
        "input_tokens": "Tokens that went in.",
        "output_tokens": "Tokens that came out.",
        "total_tokens": "Both.",
        "cached_input_tokens": "Part of `input_tokens`.",
        "reasoning_tokens": "Part of `output_tokens`.",
    },
    "MessageStart": {
        **_SEQ,
        "message_id": "The request's id.",
        "agent": "The agent that runs.",
        "thread_id": "The request's.",
        "attempt": "1, or more where workers before this one never got to start.",
    },
    "TextChunk": {**_SEQ, "content": "The piece of text."},
    "ReasoningChunk": {**_SEQ, "content": "The piece of reasoning."},
    "ToolCallStart": {**_SEQ, **_TOOL, "agent": _SUBAGENT},
    "ToolInputChunk": {**_SEQ, **_CALL_ID, "input_chunk": "A piece of JSON text."},
    "ToolInputComplete": {
        **_SEQ,
        **_TOOL,
        "tool_input": "The object; the raw text where the model wrote none.",
        "agent": _SUBAGENT,
    },
    "ToolApprovalRequest": {
        **_SEQ,
        **_TOOL,
        "tool_input": "What it would run with.",
        "expires_at": "Until when a decision is waited for, RFC 3339.",
        "agent": _SUBAGENT,
    },
    "ToolExecutionCommitted": {
        **_SEQ,
        **_TOOL,
        "tool_input": "What it really ran with.",
        "agent": _SUBAGENT,
    },
    "ToolOutput": {
        **_SEQ,
        **_CALL_ID,
        "tool_output": "Text, or content parts.",
        "is_error": "The call failed, was refused or never ran.",
        "agent": _SUBAGENT,
    },
    "ModelCallEnd": {
        **_SEQ,
        "model": "The model that answered.",
        "finish_reason": "The provider's.",
        "usage": "Tokens of this call.",
    },
    "Source": {
        **_SEQ,
        "index": "The number it is cited by.",
        "title": "Its title.",
        "content": "Its text.",
        "source_id": "The document's id.",
        "tool_call_id": "The call that found it.",
        "media_type": "Of its content.",
        "url": "Where it is from.",
    },
    "Data": {**_SEQ, "data_type": "What it is: the emitter's name for it.", "data": "Any JSON."},
    "Suggestion": {**_SEQ, "suggestions": "The questions."},
    "RunResumed": {
        **_SEQ,
        "attempt": "The attempt that goes on from here.",
        "discard_after": "Events with a higher `seq` that came before this one are void.",
    },
    "MessageEnd": {
        **_SEQ,
        "finish_reason": "Why the message ended.",
        "usage": "Tokens of all model calls.",
    },
    "Error": {
        **_SEQ,
        "error_code": "One of the error codes.",
        "error_message": "Safe to show; not to be matched on.",
        "retryable": "Whether the same request may succeed later.",
        "ref": "Finds the worker's log line with the cause.",
    },
    "StreamEnd": {
        **_SEQ,
        "attempt": "The attempt that ended the run, as its `run_resumed` has it, or 1.",
    },
    "Cancel": {"reason": "Why; at most 1024 characters."},
    "Approve": {**_CALL_ID, **_FEEDBACK},
    "Deny": {**_CALL_ID, **_FEEDBACK},
    "Modify": {**_CALL_ID, "tool_input": "The arguments to run with instead.", **_FEEDBACK},
    "Say": {"text": "The message; at most 100,000 characters."},
    "ThreadCreated": {**_AT, "title": "Its title; at most 200 characters."},
    "ThreadMessages": {
        **_AT,
        "message_id": "The run's. A second record with the same one does not count.",
        "agent": "The agent that ran.",
        "messages": "What was asked, then what the run made of it.",
    },
    "ThreadRated": {
        **_AT,
        "message_id": "The run whose messages are rated.",
        "rating": "`up`, `down` or a number; null takes a rating back.",
        "comment": "Why; at most 4,000 characters.",
    },
    "ThreadDeleted": _AT,
    "ThreadRestored": _AT,
    "ThreadState": _STATE,
    "Thread": {
        **_STATE,
        "thread_id": "Its id.",
        "log": "What each run added, oldest first; empty while the thread is deleted.",
        "ratings": "The ratings that count, by message id.",
    },
    "ThreadRating": {**_AT, "rating": "`up`, `down` or a number.", "comment": "Why."},
}
