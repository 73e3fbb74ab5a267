"""How vectors and scores are computed."""

import json
from dataclasses import dataclass


@dataclass
class PoolingParams:
    """Parameters of embeddings, classes and scores.

    truncate_prompt_tokens: cut longer texts off at the end to so many tokens; -1: to the model's limit; None: such
        texts are errors.
    dimensions: keep so many leading dimensions (docs/embeddings.md says for which models).
    normalize: whether vectors are scaled to length 1; None: as the model says.
    use_activation: False returns logits instead of scores; None: as the model says.
    prompt_name: which of the model's prompts to put before texts; "": none.
    """

    truncate_prompt_tokens: int | None = None
    dimensions: int | None = None
    normalize: bool | None = None
    use_activation: bool | None = None
    prompt_name: str | None = None

    def body(self) -> str:
        """The options that are given, as JSON."""
        return json.dumps({name: value for name, value in self.__dict__.items() if value is not None})


__all__ = ["PoolingParams"]
