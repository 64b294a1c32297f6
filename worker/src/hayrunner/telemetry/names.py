"""Every name that a span can have: the names of spans, of attributes, of closed values.

The worker's own table, after the GenAI and messaging conventions of OpenTelemetry. Their Python
constants are marked deprecated and are moving to another repository, so none is imported;
tests/unit/telemetry/test_names.py holds this table against them, docs/observability.md lists the
differences. An attribute that is not in `ATTRIBUTES` is never set.
"""

from hayrunner_contracts import otel
from hayrunner_contracts.errors import ERROR_CODES

__all__ = ["ATTRIBUTES", "CONTENT_ATTRIBUTES", "ERROR_TYPES", "FINISH_REASONS", "OTHER"]

SCOPE = "hayrunner"
"""The instrumentation scope of every span."""

OTHER = "_OTHER"
"""In place of a value that is not one of a closed set."""

# --- spans

INVOKE_AGENT = "invoke_agent"
CHAT = "chat"
EXECUTE_TOOL = "execute_tool"
PROCESS = "process"
SEND = "send"

# --- GenAI

OPERATION_NAME = "gen_ai.operation.name"
PROVIDER_NAME = "gen_ai.provider.name"
AGENT_NAME = "gen_ai.agent.name"
CONVERSATION_ID = "gen_ai.conversation.id"
REQUEST_MODEL = "gen_ai.request.model"
REQUEST_STREAM = "gen_ai.request.stream"
RESPONSE_MODEL = "gen_ai.response.model"
RESPONSE_FINISH_REASONS = "gen_ai.response.finish_reasons"
TIME_TO_FIRST_CHUNK = "gen_ai.response.time_to_first_chunk"
"""Seconds."""
INPUT_TOKENS = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
CACHED_INPUT_TOKENS = "gen_ai.usage.cache_read.input_tokens"
REASONING_TOKENS = "gen_ai.usage.reasoning.output_tokens"
TOOL_NAME = "gen_ai.tool.name"
TOOL_TYPE = "gen_ai.tool.type"
TOOL_CALL_ID = "gen_ai.tool.call.id"

# --- GenAI, content

SYSTEM_INSTRUCTIONS = "gen_ai.system_instructions"
INPUT_MESSAGES = "gen_ai.input.messages"
OUTPUT_MESSAGES = "gen_ai.output.messages"
TOOL_DEFINITIONS = "gen_ai.tool.definitions"
TOOL_CALL_ARGUMENTS = "gen_ai.tool.call.arguments"
TOOL_CALL_RESULT = "gen_ai.tool.call.result"

# --- messages, and what went wrong

MESSAGING_SYSTEM = otel.SYSTEM
MESSAGING_OPERATION_NAME = otel.OPERATION_NAME
MESSAGING_OPERATION_TYPE = otel.OPERATION_TYPE
DESTINATION_NAME = otel.DESTINATION_NAME
DESTINATION_TEMPLATE = otel.DESTINATION_TEMPLATE
MESSAGE_ID = otel.MESSAGE_ID
MESSAGE_BODY_SIZE = otel.MESSAGE_BODY_SIZE
ERROR_TYPE = otel.ERROR_TYPE

# --- this project's own

RUN_STATUS = "hayrunner.run.status"
RUN_EXIT_REASON = "hayrunner.run.exit_reason"
RUN_STEPS = "hayrunner.run.steps"
"""Model calls, those of subagents included."""
ATTEMPT = "hayrunner.attempt"
DELIVERY = "hayrunner.delivery"
QUEUE_WAIT = "hayrunner.queue.wait"
"""Seconds from when the request was stored to this attempt."""
LINK_TO = "hayrunner.link.to"
"""On a link: what it leads to."""
STEP = "hayrunner.step"
OUTCOME = "hayrunner.outcome"
COMPONENT_NAME = "hayrunner.component.name"
"""Of a generator in a pipeline."""

CONTENT_ATTRIBUTES = frozenset(
    {
        SYSTEM_INSTRUCTIONS,
        INPUT_MESSAGES,
        OUTPUT_MESSAGES,
        TOOL_DEFINITIONS,
        TOOL_CALL_ARGUMENTS,
        TOOL_CALL_RESULT,
    }
)
"""Those that hold content: set only where the run keeps it."""

ATTRIBUTES = CONTENT_ATTRIBUTES | {
    OPERATION_NAME,
    PROVIDER_NAME,
    AGENT_NAME,
    CONVERSATION_ID,
    REQUEST_MODEL,
    REQUEST_STREAM,
    RESPONSE_MODEL,
    RESPONSE_FINISH_REASONS,
    TIME_TO_FIRST_CHUNK,
    INPUT_TOKENS,
    OUTPUT_TOKENS,
    CACHED_INPUT_TOKENS,
    REASONING_TOKENS,
    TOOL_NAME,
    TOOL_TYPE,
    TOOL_CALL_ID,
    MESSAGING_SYSTEM,
    MESSAGING_OPERATION_NAME,
    MESSAGING_OPERATION_TYPE,
    DESTINATION_NAME,
    DESTINATION_TEMPLATE,
    MESSAGE_ID,
    MESSAGE_BODY_SIZE,
    ERROR_TYPE,
    RUN_STATUS,
    RUN_EXIT_REASON,
    RUN_STEPS,
    ATTEMPT,
    DELIVERY,
    QUEUE_WAIT,
    LINK_TO,
    STEP,
    OUTCOME,
    COMPONENT_NAME,
}

# --- closed values

UNKNOWN_DESTINATION = f"agents.{OTHER}.requests"
"""In place of the subject of an agent that is not served here."""

TOOL_ERROR = "tool_error"
ERROR_TYPES: frozenset[str] = frozenset({*ERROR_CODES, TOOL_ERROR, OTHER})
"""What `error.type` can be: an error code of the contract, a tool's own failure, or neither."""

DONE, FAILED, CANCELLED, REFUSED, INVALID = "done", "failed", "cancelled", "refused", "invalid"
HANDED_BACK, PARKED = "handed_back", "parked"
OUTCOMES = frozenset({DONE, FAILED, CANCELLED, REFUSED, INVALID, HANDED_BACK, PARKED})
"""How a tool call or an attempt went. Refused: by a hook or a person; invalid: it named no tool
there is, or its arguments were wrong. Handed back: the worker went away, or another one has the
run; of an attempt only. Parked: the run waits for a person, and goes on in another attempt."""

FINISH_REASONS = frozenset({"stop", "length", "content_filter", "tool_calls", "error"})
"""Why a model stopped, in the words that generators share."""

PROVIDERS = {
    "OpenAIChatGenerator": "openai",
    "OpenAIResponsesChatGenerator": "openai",
    "OpenAIGenerator": "openai",
    "OpenAICompatibleChatGenerator": "openai",
    "AzureOpenAIChatGenerator": "azure.ai.openai",
    "AzureOpenAIResponsesChatGenerator": "azure.ai.openai",
    "AzureOpenAIGenerator": "azure.ai.openai",
    "AnthropicChatGenerator": "anthropic",
    "AnthropicGenerator": "anthropic",
    "AmazonBedrockChatGenerator": "aws.bedrock",
    "CohereChatGenerator": "cohere",
    "GoogleGenAIChatGenerator": "gcp.gemini",
    "MistralChatGenerator": "mistral_ai",
    "OllamaChatGenerator": "ollama",
    "OllamaGenerator": "ollama",
}
"""By the class of the generator. A compatible server is `openai`, whoever runs it: it speaks that
protocol, and its address is nobody's business."""
