"""A deployment of Ray Serve: any number of replicas of a model behind one address (pip install "ray[serve]").

cd examples/python
serve run ray_serve_app:app model=../../models/minnow-6m replicas=2
curl -N http://localhost:8000/ -d '{"prompt": "Once upon a time", "max_tokens": 32}'

The body of a request has a prompt and any parameters of SamplingParams. The answer is a stream of text.
"""

import uuid

from ray import serve
from sluice import AsyncLLM, SamplingParams
from sluice.sampling_params import RequestOutputKind
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse


@serve.deployment(max_ongoing_requests=256)
class Completions:
    def __init__(self, model: str, threads: int):
        self.engine = AsyncLLM(model, threads=threads)

    async def __call__(self, request: Request) -> Response:
        try:
            body = await request.json()
            prompt = body.pop("prompt")
            params = SamplingParams(**body, output_kind=RequestOutputKind.DELTA)
        except (TypeError, ValueError, KeyError) as error:
            return PlainTextResponse(f"{type(error).__name__}: {error}", status_code=400)
        return StreamingResponse(self.texts(prompt, params), media_type="text/plain")

    async def texts(self, prompt: str, params: SamplingParams):
        async for output in self.engine.generate(prompt, params, uuid.uuid4().hex):
            yield output.outputs[0].text

    async def check_health(self) -> None:
        await self.engine.check_health()


def app(args: dict[str, str]):
    """Builds the application for `serve run`. Arguments: model, replicas, threads (of each replica)."""
    threads = int(args.get("threads", "2"))
    deployment = Completions.options(
        num_replicas=int(args.get("replicas", "1")), ray_actor_options={"num_cpus": threads}
    )
    return deployment.bind(args.get("model", "../../models/minnow-6m"), threads)
