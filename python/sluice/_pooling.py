"""The methods of LLM for models that return vectors and scores."""

from collections.abc import Callable, Sequence
from typing import Any

from sluice._offline import Batch, per_prompt, vectors
from sluice._session import Session
from sluice.inputs import PromptType, parse_prompts
from sluice.lora.request import LoRARequest
from sluice.outputs import (
    ClassificationOutput,
    ClassificationRequestOutput,
    EmbeddingOutput,
    EmbeddingRequestOutput,
    PoolingOutput,
    PoolingRequestOutput,
    ScoringOutput,
    ScoringRequestOutput,
)
from sluice.pooling_params import PoolingParams

Params = PoolingParams | Sequence[PoolingParams] | None
_TASKS = {"embed": "embed", "classify": "score", "score": "score", "token_embed": None, "token_classify": None}


class PoolingMethods:
    """Mixed into LLM. Texts longer than the model's limit raise ValueError, unless truncate_prompt_tokens is given."""

    _session: Session

    def encode(
        self,
        prompts: PromptType | Sequence[PromptType],
        pooling_params: Params = None,
        *,
        use_tqdm: bool | Callable[..., Any] = True,
        lora_request: LoRARequest | None = None,
        pooling_task: str | None = None,
    ) -> list[PoolingRequestOutput]:
        """What the model returns for each prompt: a float32 array of shape [width].

        pooling_task: None, or "embed", "classify" or "score", which must be the task of the model.
        """
        if pooling_task is not None:
            if _TASKS.get(pooling_task) is None:
                raise ValueError(f"pooling_task='{pooling_task}' is not supported (expected embed, classify or score)")
            self._expect(_TASKS[pooling_task], pooling_task)
        return self._pool(prompts, pooling_params, use_tqdm, lora_request, PoolingRequestOutput, PoolingOutput)

    def embed(
        self,
        prompts: PromptType | Sequence[PromptType],
        *,
        use_tqdm: bool | Callable[..., Any] = True,
        pooling_params: Params = None,
        lora_request: LoRARequest | None = None,
    ) -> list[EmbeddingRequestOutput]:
        """A vector for each prompt: `output.outputs.data` is a float32 array of shape [hidden_size]."""
        self._expect("embed", "embed")
        return self._pool(prompts, pooling_params, use_tqdm, lora_request, EmbeddingRequestOutput, EmbeddingOutput)

    def classify(
        self,
        prompts: PromptType | Sequence[PromptType],
        *,
        use_tqdm: bool | Callable[..., Any] = True,
        pooling_params: Params = None,
        lora_request: LoRARequest | None = None,
    ) -> list[ClassificationRequestOutput]:
        """A probability per class for each prompt: `output.outputs.data` has the shape [num_classes]."""
        self._expect("score", "classify")
        return self._pool(
            prompts, pooling_params, use_tqdm, lora_request, ClassificationRequestOutput, ClassificationOutput
        )

    def score(
        self,
        data_1: str | Sequence[str],
        data_2: str | Sequence[str],
        /,
        *,
        use_tqdm: bool | Callable[..., Any] = True,
        pooling_params: PoolingParams | None = None,
        lora_request: LoRARequest | None = None,
    ) -> list[ScoringRequestOutput]:
        """How well pairs of texts fit together.

        One text of data_1 is paired with each of data_2; otherwise both have equally many. A reranker scores pairs; a
        model for embeddings compares vectors by their cosine.
        """
        self._refuse_adapter(lora_request)
        first = [data_1] if isinstance(data_1, str) else list(data_1)
        second = [data_2] if isinstance(data_2, str) else list(data_2)
        if len(first) == 1:
            first *= len(second)
        if len(first) != len(second):
            raise ValueError(f"data_1 has {len(first)} texts and data_2 {len(second)} (expected one or equally many)")
        params = pooling_params or PoolingParams()
        if self._session.model["task"] == "embed":
            return self._cosines(first, second, params, use_tqdm)
        self._expect("score", "score")
        classes = self._session.model["vector_size"]
        if classes != 1:
            raise ValueError(f"the model has {classes} classes; scores need a model with one")
        found = self._run(list(zip(first, second, strict=True)), [params] * len(first), use_tqdm)
        scores = [(ScoringOutput(float(data[0])), tokens) for data, tokens in found]
        return [ScoringRequestOutput(str(i), score, tokens) for i, (score, tokens) in enumerate(scores)]

    def _cosines(
        self, first: list[str], second: list[str], params: PoolingParams, use_tqdm: bool | Callable[..., Any]
    ) -> list[ScoringRequestOutput]:
        scaled = PoolingParams(params.truncate_prompt_tokens, params.dimensions, True, None, params.prompt_name)
        texts = [(text, None) for text in (*first, *second)]
        found = self._run(texts, [scaled] * len(texts), use_tqdm)
        half = len(first)
        out = []
        for i, ((a, tokens_a), (b, tokens_b)) in enumerate(zip(found[:half], found[half:], strict=True)):
            out.append(ScoringRequestOutput(str(i), ScoringOutput(float(a @ b)), tokens_a + tokens_b))
        return out

    def _expect(self, task: str, what: str) -> None:
        found = self._session.model["task"]
        if found != task:
            raise ValueError(f"the model was loaded for the task '{found}'; {what} needs task='{task}'")

    @staticmethod
    def _refuse_adapter(lora_request: LoRARequest | None) -> None:
        if lora_request is not None:
            raise ValueError("lora_request is not supported: models for vectors and scores have no adapters")

    def _pool(
        self,
        prompts: Any,
        params: Params,
        use_tqdm: bool | Callable[..., Any],
        lora_request: LoRARequest | None,
        request_output: type,
        output: type,
    ) -> list[Any]:
        self._refuse_adapter(lora_request)
        parsed = parse_prompts(prompts)
        for prompt in parsed:
            if prompt.cache_salt is not None:
                raise ValueError("prompt['cache_salt'] is not supported: models for vectors have no prefix cache")
        each = [p or PoolingParams() for p in per_prompt("pooling_params", params, len(parsed))]
        found = self._run([(prompt.value, None) for prompt in parsed], each, use_tqdm)
        return [request_output(str(i), output(data), tokens) for i, (data, tokens) in enumerate(found)]

    def _run(
        self, texts: list[tuple], params: list[PoolingParams], use_tqdm: bool | Callable[..., Any]
    ) -> list[tuple[Any, list[int]]]:
        """The array and the tokens of each text or pair."""
        arrays: list[Any] = [None] * len(texts)
        tokens: list[list[int]] = [[] for _ in texts]

        def send(channel, i):
            _, lists = self._session.submit_pooling([texts[i]], params[i], channel, i)
            tokens[i] = lists[0]

        def take(i, part):
            arrays[i] = vectors(part)[0]
            return True

        Batch(self._session, use_tqdm, "Processed prompts").run(send, len(texts), take)
        return list(zip(arrays, tokens, strict=True))
