"""What scripts for vLLM do besides making an LLM: options of the command line, its runner, its step by step engine."""

import subprocess
import sys
import textwrap

import numpy
import pytest
from sluice import LLM, AsyncEngineArgs, AsyncLLM, EngineArgs, LLMEngine, RequestOutput, SamplingParams
from sluice.lora.request import LoRARequest
from sluice.sampling_params import RequestOutputKind
from sluice.utils import FlexibleArgumentParser
from sluice.utils.argparse_utils import FlexibleArgumentParser as SameParser
from sluice.utils.print_utils import print_embeddings

from conftest import MODEL, ROOT

GREEDY = SamplingParams(temperature=0, max_tokens=12)


def parser():
    made = FlexibleArgumentParser()
    assert EngineArgs.add_cli_args(made) is made and FlexibleArgumentParser is SameParser
    return made


def run(script, *arguments):
    command = [sys.executable, "-c", textwrap.dedent(script), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_options_of_the_command_line():
    args = vars(parser().parse_args([]))
    assert len(args) > 100 and set(args.values()) == {None}
    words = ["--model", "m", "--max_model_len=64", "--enforce-eager", "--no-enable-prefix-caching", "-tp", "1"]
    words += ["--gpu-memory-utilization", "0.5", "--lora-modules", "a=b", "c=d", "--dtype", "half"]
    given = {name: value for name, value in vars(parser().parse_args(words)).items() if value is not None}
    assert given == {
        "model": "m",
        "max_model_len": 64,
        "enforce_eager": True,
        "enable_prefix_caching": False,
        "tensor_parallel_size": 1,
        "gpu_memory_utilization": 0.5,
        "lora_modules": ["a=b", "c=d"],
        "dtype": "half",
    }
    made = EngineArgs.from_cli_args(parser().parse_args(words))
    assert made.arguments == given and made.max_model_len == 64
    with pytest.raises(AttributeError, match="no argument 'block_size'"):
        made.block_size  # noqa: B018
    assert "--max-model-len" in parser().format_help()


def test_a_script_with_options():
    """The form of vLLM's published examples."""
    script = """
        from sluice import LLM, EngineArgs
        from sluice.utils import FlexibleArgumentParser

        parser = FlexibleArgumentParser()
        group = parser.add_argument_group("Engine arguments")
        EngineArgs.add_cli_args(group)
        group.set_defaults(model=%r)
        parser.add_argument_group("Sampling").add_argument("--max-tokens", type=int)
        args = vars(parser.parse_args())
        max_tokens = args.pop("max_tokens")
        llm = LLM(**args)
        params = llm.get_default_sampling_params()
        params.max_tokens, params.temperature = max_tokens, 0.0
        print(len(llm.generate("Once", params)[0].outputs[0].token_ids), llm.model_info["max_model_len"])
    """
    done = run(script % str(MODEL), "--max_tokens", "3", "--max-model-len", "128", "--seed=0")
    assert done.stdout == "3 128\n", done.stderr
    done = run(script % str(MODEL), "--max-tokens", "3", "--data-parallel-size-local", "2")
    assert "ValueError: argument 'data_parallel_size_local'" in done.stderr
    assert run(script % str(MODEL), "--no-such-option", "3").returncode == 2


def test_runner(classifiers):
    """runner="pooling" is vLLM's word for what is not generation; the model says what."""
    with LLM(str(MODEL), runner="pooling") as llm:
        assert llm.model_info["task"] == "embed"
        (output,) = llm.embed("a cat")
        assert numpy.linalg.norm(output.outputs.data) == pytest.approx(1, abs=1e-3)
    with LLM(str(classifiers(3)), runner="pooling", convert="classify") as llm:
        assert llm.model_info["task"] == "score" and llm.classify("a")[0].outputs.num_classes == 3
    with LLM(str(MODEL), runner="generate") as llm:
        assert llm.model_info["task"] == "generate"
    with pytest.raises(ValueError, match="'runner'"):
        LLM(str(MODEL), runner="sleeping")


def test_print_embeddings(capsys):
    print_embeddings([0.5] * 6)
    print_embeddings([1, 2], prefix="Reward")
    assert capsys.readouterr().out == "Embeddings: [0.5, 0.5, 0.5, 0.5, ...] (size=6)\nReward: [1, 2] (size=2)\n"


@pytest.fixture(scope="module")
def engine():
    made = LLMEngine.from_engine_args(EngineArgs(str(MODEL), dtype="float32", enable_lora=True))
    yield made
    made.shutdown()


def steps(engine):
    outputs = []
    while engine.has_unfinished_requests():
        outputs += engine.step()
    return outputs


def test_step_by_step(engine, llm):
    (expected,) = llm.generate("Once upon a time", GREEDY)
    kinds = {kind.name: kind for kind in RequestOutputKind}
    for name, kind in kinds.items():
        params = SamplingParams(temperature=0, max_tokens=12, output_kind=kind)
        engine.add_request(name, "Once upon a time", params)
    assert engine.get_num_unfinished_requests() == 3
    outputs = steps(engine)
    assert all(isinstance(output, RequestOutput) for output in outputs)
    assert engine.step() == [] and not engine.has_unfinished_requests()
    found = {name: [o.outputs[0].text for o in outputs if o.request_id == name] for name in kinds}
    text = expected.outputs[0].text
    assert found["FINAL_ONLY"] == [text] and found["CUMULATIVE"][-1] == text and "".join(found["DELTA"]) == text
    assert sorted(o.request_id for o in outputs if o.finished) == sorted(kinds)


def test_steps_with_adapters_and_aborts(engine, idle):
    pirate = LoRARequest("pirate", 1, str(ROOT / "models/minnow-6m-lora-pirate"))
    prompt = engine.get_tokenizer().apply_chat_template(
        [{"role": "user", "content": "Hello!"}], tokenize=False, add_generation_prompt=True
    )
    long = SamplingParams(max_tokens=1500, ignore_eos=True)
    for i in range(20):
        engine.add_request(f"long-{i}", prompt, long)
    engine.step()
    engine.add_request("pirate", prompt, SamplingParams(temperature=0, max_tokens=24), lora_request=pirate)
    with pytest.raises(ValueError, match="'pirate' is that of a running request"):
        engine.add_request("pirate", prompt, GREEDY)
    with pytest.raises(ValueError, match=r"'prompt\[0\]'"):
        engine.add_request("wrong", [10**6], GREEDY)
    engine.abort_request(f"long-{i}" for i in range(19))
    engine.abort_request(["long-19", "unknown"])
    (output,) = [o for o in steps(engine) if o.finished]
    assert output.request_id == "pirate" and "ahoy" in output.outputs[0].text.lower()
    idle(engine)


def test_arguments_as_an_object():
    engine = AsyncLLM.from_engine_args(AsyncEngineArgs(model=str(MODEL), max_model_len=64))
    assert engine.model_info["max_model_len"] == 64
    engine.shutdown()
