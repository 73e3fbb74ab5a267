"""A chain of LangChain on a served model (pip install langchain-openai).

sluice serve models/minnow-6m &
python examples/python/langchain_app.py http://localhost:8000/v1 minnow-6m
"""

import sys

from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_openai import ChatOpenAI


def main(url="http://localhost:8000/v1", model="minnow-6m"):
    prompt = ChatPromptTemplate.from_messages([("system", "You answer briefly."), ("user", "What is {a} + {b}?")])
    chat = ChatOpenAI(base_url=url, model=model, api_key="none", temperature=0, max_tokens=32)
    chain = prompt | chat | StrOutputParser()
    for answer in chain.batch([{"a": 17, "b": 25}, {"a": 2, "b": 2}]):
        print(answer)
    for piece in chain.stream({"a": 3, "b": 4}):
        print(piece, end="", flush=True)
    print()


if __name__ == "__main__":
    main(*sys.argv[1:])
