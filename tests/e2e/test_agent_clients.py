"""Agent frameworks call tools and get typed answers through their own clients, without a change but the address."""

import asyncio
import json

import agents
import instructor
import langchain_openai
import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from pydantic import BaseModel, Field

QUESTION = "What is the weather in Paris?"


class Weather(BaseModel):
    """Tells the weather of a city."""

    city: str = Field(max_length=20)


@tool
def get_weather(city: str) -> str:
    """Tells the weather of a city."""
    return f"It is sunny in {city}."


@pytest.fixture(scope="module")
def chat(server):
    return langchain_openai.ChatOpenAI(
        base_url=server.url + "/v1", api_key="none", model=server.name, temperature=0, max_tokens=400, max_retries=0
    )


def test_langchain_calls_a_tool_and_reads_its_result(chat):
    bound = chat.bind_tools([get_weather])
    answer = bound.invoke(QUESTION)
    assert [(c["name"], c["args"]) for c in answer.tool_calls] == [("get_weather", {"city": "Paris"})]
    result = get_weather.invoke(answer.tool_calls[0])
    assert isinstance(result, ToolMessage)
    final = bound.invoke([HumanMessage(QUESTION), answer, result])
    assert isinstance(final, AIMessage) and final.content


def test_langchain_streams_a_call(chat):
    whole = None
    for chunk in chat.bind_tools([get_weather]).stream(QUESTION):
        whole = chunk if whole is None else whole + chunk
    assert [(c["name"], c["args"]) for c in whole.tool_calls] == [("get_weather", {"city": "Paris"})]


def test_langchain_requires_a_tool(chat):
    answer = chat.bind_tools([get_weather], tool_choice="get_weather").invoke("Hello!")
    assert [c["name"] for c in answer.tool_calls] == ["get_weather"] and not answer.invalid_tool_calls


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_langchain_gives_typed_answers(chat, method):
    answer = chat.with_structured_output(Weather, method=method).invoke(QUESTION)
    assert isinstance(answer, Weather)


@pytest.mark.parametrize("mode", ["TOOLS", "JSON_SCHEMA", "TOOLS_STRICT"])
def test_instructor_gives_typed_answers(server, mode):
    client = instructor.from_openai(server.client(), mode=getattr(instructor.Mode, mode))
    answer = client.chat.completions.create(
        model=server.name,
        response_model=Weather,
        messages=[{"role": "user", "content": QUESTION}],
        temperature=0,
        max_tokens=400,
        max_retries=0,
    )
    assert isinstance(answer, Weather)


@pytest.mark.parametrize("streamed", [False, True])
def test_openai_agents_run_a_tool(server, streamed):
    asked = []

    @agents.function_tool(name_override="get_weather")
    def weather(city: str) -> str:
        """Tells the weather of a city."""
        asked.append(city)
        return json.dumps({"city": city, "weather": "sunny"})

    agents.set_tracing_disabled(True)

    async def run():
        model = agents.OpenAIChatCompletionsModel(model=server.name, openai_client=server.async_client())
        settings = agents.ModelSettings(temperature=0, max_tokens=400)
        # The demo model may repeat its call, so the first result is the answer.
        agent = agents.Agent(
            name="weather",
            model=model,
            tools=[weather],
            model_settings=settings,
            tool_use_behavior="stop_on_first_tool",
        )
        if not streamed:
            return (await agents.Runner.run(agent, QUESTION, max_turns=2)).final_output
        result = agents.Runner.run_streamed(agent, QUESTION, max_turns=2)
        async for _ in result.stream_events():
            pass
        return result.final_output

    assert json.loads(asyncio.run(run())) == {"city": "Paris", "weather": "sunny"}
    assert asked == ["Paris"]
