"""LlamaIndex against a server: llama_index_client.py URL MODEL. Chat, prompts, streams and a tool."""

import asyncio
import sys

from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike

url, model = sys.argv[1:]
HELLO = [ChatMessage(role="user", content="Hello!")]


def connect(**options):
    options = {"temperature": 0, "max_tokens": 120, "max_retries": 0, **options}
    return OpenAILike(model=model, api_base=url + "/v1", api_key="none", **options)


def get_weather(city: str) -> str:
    """Tells the weather of a city."""
    return f"It is sunny in {city}."


chat = connect(is_chat_model=True, is_function_calling_model=True)
text = chat.chat(HELLO).message.content
assert text
assert list(chat.stream_chat(HELLO))[-1].message.content == text
assert asyncio.run(chat.achat(HELLO)).message.content == text

plain = connect(is_chat_model=False, max_tokens=12)
story = plain.complete("Once upon a time").text
assert story
assert list(plain.stream_complete("Once upon a time"))[-1].text == story

tool = FunctionTool.from_defaults(get_weather)
question = "What is the weather in Paris?"
(call,) = chat.get_tool_calls_from_response(chat.chat_with_tools([tool], question))
assert (call.tool_name, call.tool_kwargs) == ("get_weather", {"city": "Paris"}), call
assert chat.predict_and_call([tool], question).response == "It is sunny in Paris."
