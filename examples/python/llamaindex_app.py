"""An app of LlamaIndex on a served model (pip install llama-index-llms-openai-like): it answers from notes.

sluice serve models/minnow-6m &
python examples/python/llamaindex_app.py http://localhost:8000/v1 minnow-6m
"""

import sys

from llama_index.core import PromptTemplate
from llama_index.core.llms import ChatMessage
from llama_index.llms.openai_like import OpenAILike

NOTES = ["The museum opens at nine.", "The museum is closed on Mondays."]


def main(url="http://localhost:8000/v1", model="minnow-6m"):
    llm = OpenAILike(
        api_base=url, model=model, api_key="none", is_chat_model=True, context_window=2048, temperature=0, max_tokens=32
    )
    template = PromptTemplate("Notes: {notes}\nAnswer from the notes: {question}")
    print(llm.predict(template, notes=" ".join(NOTES), question="When does the museum open?"))
    for piece in llm.stream_chat([ChatMessage(role="user", content="Say hello.")]):
        print(piece.delta, end="", flush=True)
    print()


if __name__ == "__main__":
    main(*sys.argv[1:])
