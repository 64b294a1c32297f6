"""Who serves a model, in the words of OpenTelemetry's conventions for generative AI."""

from functools import lru_cache

__all__ = ["PROVIDERS", "provider_of"]

# By class name, so that no optional integration has to be imported.
_BY_GENERATOR = {
    "AmazonBedrockChatGenerator": "aws.bedrock",
    "AnthropicChatGenerator": "anthropic",
    "AzureOpenAIChatGenerator": "azure.ai.openai",
    "AzureOpenAIResponsesChatGenerator": "azure.ai.openai",
    "CohereChatGenerator": "cohere",
    "GoogleAIGeminiChatGenerator": "gcp.gemini",
    "GoogleGenAIChatGenerator": "gcp.gen_ai",
    "MistralChatGenerator": "mistral_ai",
    "OllamaChatGenerator": "ollama",
    "OpenAIChatGenerator": "openai",
    # Any server that speaks like OpenAI's is called by its dialect.
    "OpenAICompatibleChatGenerator": "openai",
    "OpenAIResponsesChatGenerator": "openai",
    "VertexAIGeminiChatGenerator": "gcp.vertex_ai",
    "WatsonxChatGenerator": "ibm.watsonx.ai",
}

PROVIDERS = frozenset(_BY_GENERATOR.values())


@lru_cache(maxsize=64)
def provider_of(kind: type[object]) -> str:
    """The provider of a generator of this class or of one that it is derived from; `_OTHER`
    where it is not known."""
    for cls in kind.__mro__:
        if found := _BY_GENERATOR.get(cls.__name__):
            return found
    return "_OTHER"
