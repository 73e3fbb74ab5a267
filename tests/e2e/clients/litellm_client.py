"""LiteLLM against a server: litellm_client.py URL MODEL EMBEDDING_URL. OpenAI's, vLLM's and Ollama's dialects."""

import asyncio
import sys

import litellm

url, model, embedding_url = sys.argv[1:]
litellm.suppress_debug_info = True
MESSAGES = [{"role": "user", "content": "Hello!"}]
WEATHER = [{"role": "user", "content": "What is the weather in Paris?"}]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Tells the weather of a city.",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
]


def ask(provider, base, **options):
    options = {"messages": MESSAGES, "temperature": 0, "max_tokens": 120, **options}
    return litellm.completion(model=f"{provider}/{model}", api_base=base, api_key="none", num_retries=0, **options)


whole = ask("openai", url + "/v1")
text = whole.choices[0].message.content
assert text and whole.choices[0].finish_reason == "stop" and whole.usage.prompt_tokens > 0, whole
for provider, base in (("openai", url + "/v1"), ("hosted_vllm", url + "/v1"), ("anthropic", url), ("ollama_chat", url)):
    assert ask(provider, base).choices[0].message.content == text, provider
    streamed = "".join(chunk.choices[0].delta.content or "" for chunk in ask(provider, base, stream=True))
    assert streamed == text, provider

call = ask("hosted_vllm", url + "/v1", messages=WEATHER, tools=TOOLS).choices[0].message.tool_calls[0].function
assert (call.name, call.arguments.replace(" ", "")) == ("get_weather", '{"city":"Paris"}'), call


async def several():
    options = {"api_base": url + "/v1", "api_key": "none", "temperature": 0, "max_tokens": 120}
    asked = [litellm.acompletion(model=f"openai/{model}", messages=MESSAGES, **options) for _ in range(8)]
    return [answer.choices[0].message.content for answer in await asyncio.gather(*asked)]


assert asyncio.run(several()) == [text] * 8

try:
    litellm.completion(model="openai/no-such-model", messages=MESSAGES, api_base=url + "/v1", api_key="none")
    raise AssertionError("an unknown model was answered")
except litellm.NotFoundError as error:
    assert model in str(error), error
try:
    ask("openai", url + "/v1", messages=[{"role": "user", "content": "word " * 10_000}])
    raise AssertionError("a prompt that is too long was answered")
except litellm.ContextWindowExceededError:
    pass

vectors = litellm.embedding(
    model=f"hosted_vllm/{model}", input=["Hello", "Good bye"], api_base=embedding_url + "/v1", api_key="none"
)
assert len(vectors.data) == 2 and len(vectors.data[0]["embedding"]) == len(vectors.data[1]["embedding"]) > 0
ranked = litellm.rerank(
    model=f"hosted_vllm/{model}", query="Hello", documents=["Good bye", "Hello"], api_base=embedding_url, api_key="none"
)
assert ranked.results[0]["index"] == 1, ranked
