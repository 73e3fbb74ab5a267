"""LLM: a model for offline use, with vLLM's interface."""

from collections.abc import Callable, Sequence
from typing import Any

from sluice._answers import Answer
from sluice._offline import Batch, per_prompt
from sluice._pooling import PoolingMethods
from sluice._session import Session
from sluice.inputs import ParsedPrompt, PromptType, parse_prompts
from sluice.lora.request import LoRARequest
from sluice.outputs import BeamSearchOutput, BeamSearchSequence, RequestOutput
from sluice.sampling_params import BeamSearchParams, SamplingParams
from sluice.tokenizer import Tokenizer

Loras = LoRARequest | Sequence[LoRARequest | None] | None


class LLM(PoolingMethods):
    """Loads a model and runs batches of requests on it.

    model: a folder or a file of a checkpoint, or org/name on the Hugging Face hub.
    options: the options of `sluice serve` with '_' for '-' (docs/options.md), and the arguments of vLLM
        (docs/vllm-options.md). Unknown ones raise TypeError, those that are not supported ValueError.

    Methods may be called by several threads at the same time. An exception, Ctrl-C included, ends the requests of the
    call. A process that was forked cannot use the object.
    """

    def __init__(
        self,
        model: str,
        *,
        tokenizer: str | None = None,
        dtype: str | None = None,
        max_model_len: int | None = None,
        seed: int | None = None,
        **options: Any,
    ):
        given = {"tokenizer": tokenizer, "dtype": dtype, "max_model_len": max_model_len, "seed": seed, **options}
        self._session = Session(model, given)
        self._next_id = 0

    def close(self) -> None:
        """Ends running requests and frees the model. Later calls raise RuntimeError."""
        self._session.close()

    def __enter__(self) -> "LLM":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def model_info(self) -> dict[str, Any]:
        """Facts about the model: name, family, dtype, backend, task, max_model_len, vocab_size, ..."""
        return dict(self._session.model)

    def get_tokenizer(self) -> Tokenizer:
        return self._session.tokenizer

    def get_default_sampling_params(self) -> SamplingParams:
        """vLLM's defaults, changed by the checkpoint's generation_config.json."""
        return self._session.default_sampling()

    def generate(
        self,
        prompts: PromptType | Sequence[PromptType],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool | Callable[..., Any] = True,
        lora_request: Loras = None,
        priority: Sequence[int] | None = None,
    ) -> list[RequestOutput]:
        """Continues prompts. Returns their outputs in the order of the prompts.

        sampling_params: for all prompts, or one for each; None: get_default_sampling_params().
        use_tqdm: shows a progress bar, if tqdm is installed; may be a function like tqdm.
        lora_request: an adapter for all prompts, or one for each.
        priority: of each prompt; lower goes first, with scheduling_policy="priority".
        """
        return self._generate(parse_prompts(prompts), sampling_params, use_tqdm, lora_request, priority)

    def chat(
        self,
        messages: list[dict] | Sequence[list[dict]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool | Callable[..., Any] = True,
        lora_request: Loras = None,
        chat_template: str | None = None,
        chat_template_content_format: str = "auto",
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: list[dict] | None = None,
        chat_template_kwargs: dict[str, Any] | None = None,
        mm_processor_kwargs: dict[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Answers one conversation, or several. The text of an output has thoughts and calls as the model wrote them.

        chat_template: a Jinja file, or a template in one line, instead of the model's.
        continue_final_message: goes on with the last message; needs add_generation_prompt=False.
        tools: functions that the template tells the model about, in OpenAI's form.
        chat_template_kwargs: further variables for the template.
        """
        if chat_template_content_format != "auto":
            raise ValueError("chat_template_content_format is not supported: the template tells the format")
        if mm_processor_kwargs:
            raise ValueError("mm_processor_kwargs is not supported: models read text only")
        conversations = [messages] if messages and isinstance(messages[0], dict) else messages
        fields = {
            "add_generation_prompt": add_generation_prompt,
            "continue_final_message": continue_final_message,
            "tools": tools,
            "chat_template_kwargs": chat_template_kwargs,
        }
        texts = [self._session.render_chat(c, chat_template, dict(fields)) for c in conversations]
        prompts = [ParsedPrompt(text) for text in texts]
        return self._generate(prompts, sampling_params, use_tqdm, lora_request, None, add_special_tokens=False)

    def beam_search(
        self,
        prompts: PromptType | Sequence[PromptType],
        params: BeamSearchParams,
        lora_request: Loras = None,
        use_tqdm: bool | Callable[..., Any] = False,
    ) -> list[BeamSearchOutput]:
        """The params.beam_width likeliest texts for each prompt, the best one first."""
        parsed = parse_prompts(prompts)
        sampling = _BeamSampling(params)
        outputs = self._generate(parsed, sampling, use_tqdm, lora_request, None)
        return [BeamSearchOutput([self._sequence(output, c) for c in output.outputs]) for output in outputs]

    def _sequence(self, output: RequestOutput, choice: Any) -> BeamSearchSequence:
        tokens = output.prompt_token_ids + choice.token_ids
        return BeamSearchSequence(
            tokens,
            self._session.tokenizer.decode(tokens, skip_special_tokens=True),
            choice.cumulative_logprob,
            choice.logprobs,
            choice.finish_reason,
            choice.stop_reason,
            choice.lora_request,
        )

    def _generate(
        self,
        prompts: list[ParsedPrompt],
        sampling_params: Any,
        use_tqdm: bool | Callable[..., Any],
        lora_request: Loras,
        priority: Sequence[int] | None,
        add_special_tokens: bool = True,
    ) -> list[RequestOutput]:
        count = len(prompts)
        params = list(per_prompt("sampling_params", sampling_params or self.get_default_sampling_params(), count))
        loras = list(per_prompt("lora_request", lora_request, count))
        priorities = list(per_prompt("priority", priority or 0, count))
        first_id, self._next_id = self._next_id, self._next_id + count
        answers: list[Answer] = []
        outputs: list[RequestOutput | None] = [None] * count
        requests: dict[tuple, Any] = {}  # equal for equal parameters

        def send(channel, i):
            prompt = prompts[i]
            kind = (id(params[i]), loras[i], priorities[i], prompt.cache_salt)
            if kind not in requests:
                requests[kind] = self._session.request(params[i], loras[i], priorities[i], prompt.cache_salt)
            _, answer = self._session.submit(
                prompt,
                params[i],
                requests[kind],
                channel,
                i,
                str(first_id + i),
                lora=loras[i],
                add_special_tokens=add_special_tokens,
            )
            answers.append(answer)

        def take(i, part):
            outputs[i] = answers[i].add(part)
            return outputs[i] is not None

        Batch(self._session, use_tqdm, "Processed prompts").run(send, count, take)
        return outputs


class _BeamSampling:
    """BeamSearchParams in the form that requests are made of."""

    detokenize = True
    truncate_prompt_tokens = None
    logprobs = 0

    def __init__(self, params: BeamSearchParams):
        self.n = params.beam_width
        self.body = params.body


__all__ = ["LLM"]
