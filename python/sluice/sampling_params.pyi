"""Types of sluice.sampling_params. The numbers of SamplingParams are those of include/sluice/sampling_parameters.h."""

from enum import Enum
from typing import Any

class RequestOutputKind(Enum):
    CUMULATIVE = 0
    DELTA = 1
    FINAL_ONLY = 2

class StructuredOutputsParams:
    json: str | dict | None
    regex: str | None
    choice: list[str] | None
    grammar: str | None
    json_object: bool | None
    structural_tag: str | dict | None
    disable_fallback: bool
    disable_any_whitespace: bool
    disable_additional_properties: bool
    whitespace_pattern: str | None
    def __init__(
        self,
        json: str | dict | None = None,
        regex: str | None = None,
        choice: list[str] | None = None,
        grammar: str | None = None,
        json_object: bool | None = None,
        structural_tag: str | dict | None = None,
        disable_fallback: bool = False,
        disable_any_whitespace: bool = False,
        disable_additional_properties: bool = False,
        whitespace_pattern: str | None = None,
    ) -> None: ...
    def body(self) -> dict[str, Any]: ...

class GuidedDecodingParams(StructuredOutputsParams):
    backend: str | None
    def __init__(
        self,
        json: str | dict | None = None,
        regex: str | None = None,
        choice: list[str] | None = None,
        grammar: str | None = None,
        json_object: bool | None = None,
        structural_tag: str | dict | None = None,
        disable_fallback: bool = False,
        disable_any_whitespace: bool = False,
        disable_additional_properties: bool = False,
        whitespace_pattern: str | None = None,
        backend: str | None = None,
    ) -> None: ...

class SamplingParams:
    n: int
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    top_n_sigma: float
    presence_penalty: float
    frequency_penalty: float
    repetition_penalty: float
    repeat_last_n: int
    typical_p: float
    top_a: float
    epsilon_cutoff: float
    eta_cutoff: float
    xtc_probability: float
    xtc_threshold: float
    dynatemp_range: float
    dynatemp_exponent: float
    smoothing_factor: float
    smoothing_curve: float
    mirostat: int
    mirostat_tau: float
    mirostat_eta: float
    adaptive_target: float
    adaptive_decay: float
    no_repeat_ngram_size: int
    dry_multiplier: float
    dry_base: float
    dry_allowed_length: int
    dry_penalty_last_n: int
    penalty_alpha: float
    best_of: int | None
    seed: int | None
    stop: str | list[str] | None
    stop_token_ids: list[int] | None
    bad_words: list[str] | None
    dry_sequence_breakers: list[str] | None
    samplers: list[str] | None
    include_stop_str_in_output: bool
    ignore_eos: bool
    max_tokens: int | None
    min_tokens: int
    logprobs: int | None
    prompt_logprobs: int | None
    logit_bias: dict[int, float] | None
    allowed_token_ids: list[int] | None
    skip_special_tokens: bool
    detokenize: bool
    truncate_prompt_tokens: int | None
    output_kind: RequestOutputKind
    structured_outputs: StructuredOutputsParams | None
    guided_decoding: GuidedDecodingParams | None
    def __init__(
        self,
        n: int = 1,
        *,
        temperature: float = 1.0,
        top_p: float = 1.0,
        top_k: int = 0,
        min_p: float = 0.0,
        top_n_sigma: float = 0.0,
        presence_penalty: float = 0.0,
        frequency_penalty: float = 0.0,
        repetition_penalty: float = 1.0,
        repeat_last_n: int = -1,
        typical_p: float = 1.0,
        top_a: float = 0.0,
        epsilon_cutoff: float = 0.0,
        eta_cutoff: float = 0.0,
        xtc_probability: float = 0.0,
        xtc_threshold: float = 0.1,
        dynatemp_range: float = 0.0,
        dynatemp_exponent: float = 1.0,
        smoothing_factor: float = 0.0,
        smoothing_curve: float = 1.0,
        mirostat: int = 0,
        mirostat_tau: float = 5.0,
        mirostat_eta: float = 0.1,
        adaptive_target: float = -1.0,
        adaptive_decay: float = 0.9,
        no_repeat_ngram_size: int = 0,
        dry_multiplier: float = 0.0,
        dry_base: float = 1.75,
        dry_allowed_length: int = 2,
        dry_penalty_last_n: int = -1,
        penalty_alpha: float = 0.0,
        best_of: int | None = None,
        seed: int | None = None,
        stop: str | list[str] | None = None,
        stop_token_ids: list[int] | None = None,
        bad_words: list[str] | None = None,
        dry_sequence_breakers: list[str] | None = None,
        samplers: list[str] | None = None,
        include_stop_str_in_output: bool = False,
        ignore_eos: bool = False,
        max_tokens: int | None = 16,
        min_tokens: int = 0,
        logprobs: int | None = None,
        prompt_logprobs: int | None = None,
        logit_bias: dict[int, float] | None = None,
        allowed_token_ids: list[int] | None = None,
        skip_special_tokens: bool = True,
        detokenize: bool = True,
        truncate_prompt_tokens: int | None = None,
        output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE,
        structured_outputs: StructuredOutputsParams | None = None,
        guided_decoding: GuidedDecodingParams | None = None,
    ) -> None: ...
    @staticmethod
    def from_optional(**parameters: Any) -> SamplingParams: ...
    def clone(self) -> SamplingParams: ...
    def body(self) -> str: ...

class BeamSearchParams:
    beam_width: int
    max_tokens: int
    ignore_eos: bool
    temperature: float
    length_penalty: float
    include_stop_str_in_output: bool
    def __init__(
        self,
        beam_width: int,
        max_tokens: int,
        ignore_eos: bool = False,
        temperature: float = 0.0,
        length_penalty: float = 1.0,
        include_stop_str_in_output: bool = False,
    ) -> None: ...
    def body(self) -> str: ...
