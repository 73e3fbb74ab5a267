"""lm-eval against a server: lm_eval_client.py URL MODEL. HumanEval's five stop strings, and log likelihoods."""

import pathlib
import sys

import lm_eval
import yaml
from lm_eval.api.instance import Instance
from lm_eval.models.openai_completions import LocalChatCompletion, LocalCompletionsAPI

url, model = sys.argv[1:]


class Loader(yaml.SafeLoader):
    """Reads a task's settings without its functions."""


Loader.add_constructor("!function", lambda loader, node: None)
task = pathlib.Path(lm_eval.__file__).parent / "tasks" / "humaneval" / "humaneval.yaml"
settings = yaml.load(task.read_text(), Loader)["generation_kwargs"]
assert len(settings["until"]) == 5, settings


def instances(kind, *arguments):
    return [Instance(request_type=kind, doc={}, arguments=pair, idx=i) for i, pair in enumerate(arguments)]


# The demo model writes stories, so that the strings that end a function end nothing. Others must.
PROMPTS = ["Once upon a time", "The capital of France is"]
completions = LocalCompletionsAPI(base_url=url + "/v1/completions", model=model, tokenizer_backend="remote")
asked = {**settings, "max_gen_toks": 40}
answers = completions.generate_until(instances("generate_until", *((prompt, asked) for prompt in PROMPTS)))
assert all(answers), answers
word = " " + answers[0].split()[3]
asked = {**asked, "until": [*settings["until"][:4], word]}
(cut,) = completions.generate_until(instances("generate_until", (PROMPTS[0], asked)))
assert cut == answers[0][: answers[0].index(word)], (cut, answers[0], word)

# The sum over a text does not depend on where it is divided; the answer of greedy sampling is the greedy one.
text = " there was a little girl"
whole, first = completions.loglikelihood(instances("loglikelihood", (PROMPTS[0], text), (PROMPTS[0], text[:10])))
rest = completions.loglikelihood(instances("loglikelihood", (PROMPTS[0] + text[:10], text[10:])))[0]
assert abs(whole[0] - first[0] - rest[0]) < 1e-3, (whole, first, rest)
assert completions.loglikelihood(instances("loglikelihood", (PROMPTS[0], cut)))[0][1], "not greedy"
rolling = completions.loglikelihood_rolling(instances("loglikelihood_rolling", (PROMPTS[0] + text,)))
assert rolling[0] < 0, rolling

chat = LocalChatCompletion(base_url=url + "/v1/chat/completions", model=model, tokenizer_backend=None)
message = chat.apply_chat_template([{"role": "user", "content": "Hello!"}])
(answer,) = chat.generate_until(instances("generate_until", (message, {**settings, "max_gen_toks": 40})))
assert answer
