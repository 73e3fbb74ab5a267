"""An app of LlamaIndex on a served model (pip install llama-index-llms-ollama): it answers from notes.

sluice serve models/minnow-6m &
python examples/python/llamaindex_app.py http://localhost:8000 minnow-6m

The class for Ollama's API talks to Sluice, which speaks that dialect, too. With the package
llama-index-llms-openai-like, OpenAILike(api_base=url + "/v1", model=model, is_chat_model=True) takes its place.
"""

import sys

from llama_index.core import Document, SummaryIndex
from llama_index.core.llms import ChatMessage
from llama_index.llms.ollama import Ollama

NOTES = ["The museum opens at nine.", "The museum is closed on Mondays."]


def main(url="http://localhost:8000", model="minnow-6m"):
    options = {"num_predict": 32}
    llm = Ollama(base_url=url, model=model, context_window=2048, temperature=0, additional_kwargs=options)
    index = SummaryIndex.from_documents([Document(text=note) for note in NOTES])
    print(index.as_query_engine(llm=llm).query("When does the museum open?"))
    for piece in llm.stream_chat([ChatMessage(role="user", content="Say hello.")]):
        print(piece.delta, end="", flush=True)
    print()


if __name__ == "__main__":
    main(*sys.argv[1:])
