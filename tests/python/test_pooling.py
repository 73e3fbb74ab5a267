"""Vectors, classes and scores."""

import numpy
import pytest
from sluice import LLM, PoolingParams, SamplingParams

from conftest import MODEL


@pytest.fixture(scope="session", params=[1, 3])
def classifier(request, classifiers):
    labels = request.param
    with LLM(str(classifiers(labels)), dtype="float32") as llm:
        yield llm, labels


def test_embeddings(embedder):
    outputs = embedder.embed(["a cat", "a dog", "a cat"])
    vectors = [output.outputs.data for output in outputs]
    assert all(v.dtype == numpy.float32 and v.shape == (256,) for v in vectors)
    assert not vectors[0].flags.owndata and vectors[0].flags.writeable  # the engine's own memory, not a copy
    assert numpy.array_equal(vectors[0], vectors[2]) and not numpy.array_equal(vectors[0], vectors[1])
    assert numpy.linalg.norm(vectors[0]) == pytest.approx(1, abs=1e-5)
    assert outputs[0].outputs.embedding == vectors[0].tolist() and outputs[0].outputs.hidden_size == 256
    assert outputs[0].prompt_token_ids == embedder.get_tokenizer().encode("a cat")
    (ids,) = embedder.embed({"prompt_token_ids": outputs[0].prompt_token_ids})
    assert numpy.array_equal(ids.outputs.data, vectors[0])


def test_vectors_outlive_the_model():
    llm = LLM(str(MODEL), task="embed")
    (output,) = llm.embed("a cat")
    before = output.outputs.data.copy()
    llm.close()
    del llm
    assert numpy.array_equal(output.outputs.data, before)


def test_pooling_params(embedder):
    (output,) = embedder.embed("a cat", pooling_params=PoolingParams(dimensions=8, normalize=False))
    assert output.outputs.hidden_size == 8
    long = "word " * 3000
    with pytest.raises(ValueError, match=r"texts\[0\]|maximum context length"):
        embedder.embed(long)
    (output,) = embedder.embed(long, pooling_params=PoolingParams(truncate_prompt_tokens=5))
    assert len(output.prompt_token_ids) == 5
    with pytest.raises(ValueError, match="dimensions"):
        embedder.embed("a", pooling_params=PoolingParams(dimensions=10**6))
    with pytest.raises(ValueError, match="prompt_name"):
        embedder.embed("a", pooling_params=PoolingParams(prompt_name="query"))
    data = embedder.encode("a cat", pooling_task="embed")[0].outputs.data
    assert numpy.array_equal(data, embedder.embed("a cat")[0].outputs.data)


def test_scores_of_vectors(embedder):
    outputs = embedder.score("a cat", ["a cat", "the weather in May"])
    assert outputs[0].outputs.score == pytest.approx(1, abs=1e-5)
    assert outputs[1].outputs.score < outputs[0].outputs.score
    with pytest.raises(ValueError, match="2 texts and data_2 3"):
        embedder.score(["a", "b"], ["a", "b", "c"])


def test_classes(classifier):
    llm, labels = classifier
    outputs = llm.classify(["good", "bad"])
    for output in outputs:
        assert output.outputs.num_classes == labels and all(0 <= p <= 1 for p in output.outputs.probs)
        if labels > 1:
            assert sum(output.outputs.probs) == pytest.approx(1, abs=1e-5)
    (logits,) = llm.encode("good", pooling_params=PoolingParams(use_activation=False))
    assert not numpy.array_equal(logits.outputs.data, outputs[0].outputs.data)


def test_scores_of_a_reranker(classifier):
    llm, labels = classifier
    if labels > 1:
        with pytest.raises(ValueError, match="3 classes"):
            llm.score("query", "text")
        return
    single, pair = llm.score("query", ["one text", "another one"])
    assert 0 <= single.outputs.score <= 1 and single.outputs.score != pair.outputs.score


def test_tasks_are_told_apart(llm, embedder):
    with pytest.raises(ValueError, match="task 'generate'"):
        llm.embed("a")
    with pytest.raises(ValueError, match="task 'embed'"):
        embedder.classify("a")
    with pytest.raises(ValueError, match="generate"):
        embedder.generate("a", SamplingParams())
    with pytest.raises(ValueError, match="pooling_task"):
        embedder.encode("a", pooling_task="token_embed")
