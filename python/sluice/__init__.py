"""Sluice: runs large language models. The interface is vLLM's, so that a script changes its import line only.

    from sluice import LLM, SamplingParams

    llm = LLM("models/minnow-6m")
    for output in llm.generate(["Once upon a time"], SamplingParams(temperature=0, max_tokens=16)):
        print(output.outputs[0].text)

docs/python.md describes the package.
"""

from sluice._core import RequestError, __version__
from sluice.async_llm import AsyncLLM, AsyncLLMEngine
from sluice.engine.arg_utils import AsyncEngineArgs, EngineArgs
from sluice.engine.llm_engine import LLMEngine
from sluice.inputs import PromptType, TextPrompt, TokensPrompt
from sluice.llm import LLM
from sluice.outputs import (
    ClassificationOutput,
    ClassificationRequestOutput,
    CompletionOutput,
    EmbeddingOutput,
    EmbeddingRequestOutput,
    Logprob,
    PoolingOutput,
    PoolingRequestOutput,
    RequestOutput,
    ScoringOutput,
    ScoringRequestOutput,
)
from sluice.pooling_params import PoolingParams
from sluice.sampling_params import BeamSearchParams, SamplingParams

__all__ = [
    "LLM",
    "AsyncEngineArgs",
    "AsyncLLM",
    "AsyncLLMEngine",
    "BeamSearchParams",
    "ClassificationOutput",
    "ClassificationRequestOutput",
    "CompletionOutput",
    "EmbeddingOutput",
    "EmbeddingRequestOutput",
    "EngineArgs",
    "LLMEngine",
    "Logprob",
    "PoolingOutput",
    "PoolingParams",
    "PoolingRequestOutput",
    "PromptType",
    "RequestError",
    "RequestOutput",
    "SamplingParams",
    "ScoringOutput",
    "ScoringRequestOutput",
    "TextPrompt",
    "TokensPrompt",
    "__version__",
]
