"""Stored answers through OpenAI's client: chat completions and responses, over restarts, kills and full disks."""

import asyncio
import random
import resource
import signal
import sqlite3
import subprocess
import threading
import time

import httpx
import openai
import pytest

import serving

HELLO = [{"role": "user", "content": "Hello!"}]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tmp_path_factory.mktemp("store") / "answers.db"


@pytest.fixture(scope="module")
def client(path):
    with serving.Server("--store", str(path)) as running:
        yield running.client()


def ask(client, **options):
    options = {"messages": HELLO, "max_tokens": 8, "temperature": 0, "store": True, **options}
    return client.chat.completions.create(model=client.models.list().data[0].id, **options)


def streamed(client, **options):
    chunks = list(ask(client, stream=True, **options))
    return chunks[0].id, "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)


def test_chat_completions(client):
    answer = ask(client, metadata={"project": "a"})
    kept = client.chat.completions.retrieve(answer.id)
    assert kept.object == "chat.completion" and kept.metadata == {"project": "a"}
    assert (kept.choices, kept.usage, kept.created) == (answer.choices, answer.usage, answer.created)
    (message,) = client.chat.completions.messages.list(answer.id).data
    assert (message.id, message.role, message.content) == (f"{answer.id}-0", "user", "Hello!")
    assert client.chat.completions.update(answer.id, metadata={"project": "b"}).metadata == {"project": "b"}
    listed = client.chat.completions.list(metadata={"project": "b"})
    assert [item.id for item in listed] == [answer.id] and not listed.has_more
    gone = client.chat.completions.delete(answer.id)
    assert (gone.id, gone.object, gone.deleted) == (answer.id, "chat.completion.deleted", True)
    with pytest.raises(openai.NotFoundError, match="not found"):
        client.chat.completions.retrieve(answer.id)


def test_a_stream_is_stored_as_a_whole(client):
    whole = ask(client)
    id, text = streamed(client, metadata={"kind": "stream"})
    kept = client.chat.completions.retrieve(id)
    assert kept.choices[0].message.content == text == whole.choices[0].message.content
    assert kept.choices == whole.choices and kept.usage.completion_tokens == whole.usage.completion_tokens
    assert kept.metadata == {"kind": "stream"}


def test_pages(client):
    ids = [ask(client, metadata={"set": "pages"}, max_tokens=1).id for _ in range(5)]
    listed = client.chat.completions.list(metadata={"set": "pages"}, limit=2)
    assert [item.id for item in listed.data] == ids[:2] and listed.has_more
    assert [item.id for item in listed] == ids  # the client asks for the other pages
    backwards = client.chat.completions.list(metadata={"set": "pages"}, limit=2, order="desc", after=ids[3])
    assert [item.id for item in backwards] == ids[2::-1]
    for item in client.chat.completions.list(metadata={"set": "pages"}, limit=2):
        client.chat.completions.delete(item.id)
    assert not client.chat.completions.list(metadata={"set": "pages"}).data
    conversation = [{"role": "user", "content": f"{i}"} if i % 2 == 0 else {"role": "assistant", "content": "x"}
                    for i in range(7)]
    answer = ask(client, messages=conversation)
    messages = client.chat.completions.messages.list(answer.id, limit=3)
    assert [message.content for message in messages] == [message["content"] for message in conversation]


def test_what_the_client_accepts(client):
    """As the client's own tests of these calls: raw and streamed responses, and ids that are empty."""
    chats = client.chat.completions
    answer = ask(client)
    calls = {
        chats: [("retrieve", {}), ("update", {"metadata": {"foo": "string"}}), ("delete", {})],
        chats.messages: [("list", {"after": f"{answer.id}-0", "limit": 1, "order": "asc"})],
    }
    for resource_, methods in reversed(calls.items()):
        for name, options in methods:
            with pytest.raises(ValueError, match="non-empty value for `completion_id`"):
                getattr(resource_.with_raw_response, name)("", **options)
            with pytest.raises(openai.NotFoundError):
                getattr(resource_, name)("completion_id", **({} if name == "list" else options))
            if name == "delete":
                continue
            raw = getattr(resource_.with_raw_response, name)(answer.id, **options)
            assert raw.http_request.headers.get("X-Stainless-Lang") == "python" and raw.parse()
            with getattr(resource_.with_streaming_response, name)(answer.id, **options) as streaming:
                assert streaming.parse()
    raw = chats.with_raw_response.list(after=answer.id, limit=1, metadata={"foo": "string"}, model="m", order="asc")
    assert raw.parse().object == "list"
    with chats.with_streaming_response.list() as streaming:
        assert answer.id in [item.id for item in streaming.parse().data]


def test_asynchronous_client(client):
    async def use():
        own = openai.AsyncOpenAI(base_url=client.base_url, api_key="none", max_retries=0, timeout=120)
        model = (await own.models.list()).data[0].id
        options = {"messages": HELLO, "max_tokens": 4, "store": True, "metadata": {"from": "async"}}
        answer = await own.chat.completions.create(model=model, **options)
        kept = await own.chat.completions.retrieve(answer.id)
        assert kept.choices == answer.choices
        assert (await own.chat.completions.messages.list(answer.id)).data[0].content == "Hello!"
        await own.chat.completions.update(answer.id, metadata={"from": "later"})
        assert [item.id async for item in own.chat.completions.list(metadata={"from": "later"})] == [answer.id]
        await own.chat.completions.delete(answer.id)
        with pytest.raises(openai.NotFoundError):
            await own.chat.completions.messages.list(answer.id)

    asyncio.run(use())


def test_metadata_has_limits(client):
    for metadata in ({str(i): "" for i in range(17)}, {"k" * 65: ""}, {"k": "v" * 513}, {"k": 5}):
        with pytest.raises(openai.BadRequestError, match="metadata"):
            ask(client, metadata=metadata)


def test_answers_outlive_the_server(tmp_path):
    path = tmp_path / "answers.db"
    with serving.Server("--store", str(path)) as first:
        own = first.client()
        chat = ask(own, metadata={"k": "v"})
        response = own.responses.create(model=first.name, input="My name is Ada.", max_output_tokens=8)
        first.terminate()
        assert first.wait() == 0
    assert (path.stat().st_mode & 0o777, path.with_name("answers.db-wal").exists()) == (0o600, False)
    with serving.Server("--store", str(path)) as second:
        own = second.client()
        assert own.chat.completions.retrieve(chat.id).choices == chat.choices
        assert own.responses.retrieve(response.id).output_text == response.output_text
        assert own.responses.input_items.list(response.id).data[0].content[0].text == "My name is Ada."
        whole = [{"role": "user", "content": "My name is Ada."},
                 {"role": "assistant", "content": response.output_text}, *HELLO]
        follow = {"model": second.name, "max_output_tokens": 8, "temperature": 0}
        stored = own.responses.create(input="Hello!", previous_response_id=response.id, **follow)
        sent = own.responses.create(input=whole, store=False, **follow)
        assert stored.usage.input_tokens == sent.usage.input_tokens and stored.output_text == sent.output_text
        own.responses.delete(response.id)
        with pytest.raises(openai.NotFoundError):
            own.responses.retrieve(response.id)


def test_kill_while_writing(tmp_path):
    """What was reported as stored is there after kill -9, and the file is whole."""
    path = tmp_path / "answers.db"
    seen = []

    def write(url, model):
        own = openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0)
        try:
            for _ in range(200):
                options = {"model": model, "messages": HELLO, "max_tokens": 1, "store": True}
                seen.append(own.chat.completions.create(**options).id)
        except openai.APIError:
            pass  # the server is gone

    for delay in (0.3, 0.6, 0.9):
        with serving.Server("--store", str(path)) as server:
            kept = {item.id for item in server.client().chat.completions.list(limit=100)}
            assert kept >= set(seen), "answers were lost"
            threads = [threading.Thread(target=write, args=(server.url, server.name)) for _ in range(4)]
            for thread in threads:
                thread.start()
            time.sleep(delay + random.random() / 10)
            server.process.send_signal(signal.SIGKILL)
            server.wait()
            for thread in threads:
                thread.join()
    assert seen
    with sqlite3.connect(path) as database:
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        stored = {id for id, in database.execute("SELECT id FROM items")}
    assert stored >= set(seen)


def test_files_that_are_refused(tmp_path):
    """Before the model loads, with the path in the message."""
    text, other, newer = tmp_path / "notes.txt", tmp_path / "other.db", tmp_path / "newer.db"
    text.write_text("not a database " * 500)
    with sqlite3.connect(other) as database:
        database.execute("CREATE TABLE t (a)")
    with sqlite3.connect(newer) as database:
        database.execute("CREATE TABLE items (a)")
        database.execute(f"PRAGMA application_id = {0x536C6365}")
        database.execute("PRAGMA user_version = 2")
    for path, reason in (
        (text, "is not a database of stored answers"),
        (other, "is a database of another program"),
        (newer, "has version 2 of the tables, and this program reads version 1"),
        (tmp_path / "missing" / "a.db", "cannot be opened for writing: No such file or directory"),
    ):
        command = [str(serving.binary()), "serve", str(serving.MODEL), "--port", "0", "--store", str(path)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.returncode != 0 and f"--store: {path} {reason}" in done.stderr, done.stderr


def test_a_disk_that_is_full(tmp_path):
    """A limit on the size of files stands for the disk. Who wants no answer stored is served all the while."""
    with serving.Server("--store", str(tmp_path / "answers.db")) as server:
        own = server.client()
        before = ask(own)
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
        with pytest.raises(openai.InternalServerError, match="store failed: disk I/O error") as error:
            ask(own)
        assert error.value.code == "store_failed" and '"store": false' in error.value.body["message"]
        with pytest.raises(openai.InternalServerError, match="store failed: disk I/O error"):
            own.responses.create(model=server.name, input="Hello!")
        assert ask(own, store=False).choices and own.responses.create(model=server.name, input="Hello!", store=False)
        assert own.chat.completions.retrieve(before.id).choices == before.choices
        assert httpx.get(server.url + "/health").status_code == 200
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        assert own.chat.completions.retrieve(ask(own).id)


def test_keys_see_their_own_answers(tmp_path):
    with serving.Server("--api-key", "a", "--api-key", "b", "--store", str(tmp_path / "answers.db")) as server:
        first, second = server.client("a"), server.client("b")
        answer = ask(first)
        assert [item.id for item in first.chat.completions.list()] == [answer.id]
        assert not second.chat.completions.list().data
        for call in (second.chat.completions.retrieve, second.chat.completions.delete,
                     second.chat.completions.messages.list):
            with pytest.raises(openai.NotFoundError):
                call(answer.id)


def test_several_models_share_a_store(tmp_path):
    path = tmp_path / "answers.db"
    models = [f"{name}={serving.MODEL}" for name in ("one", "two")]
    with serving.Server(*models, "--store", str(path), model=None) as server:
        own = server.client()
        options = {"messages": HELLO, "max_tokens": 1, "store": True}
        ids = {name: own.chat.completions.create(model=name, **options).id for name in ("one", "two")}
        assert {item.id for item in own.chat.completions.list()} == set(ids.values())
        assert [item.id for item in own.chat.completions.list(model="two")] == [ids["two"]]
        assert not own.chat.completions.list(model="three").data


def test_time_and_size(tmp_path):
    options = ["--store", str(tmp_path / "answers.db"), "--store-ttl", "2", "--store-size", "8k"]
    with serving.Server(*options) as server:
        own = server.client()
        ids = [ask(own).id for _ in range(12)]
        kept = [item.id for item in own.chat.completions.list()]
        assert 0 < len(kept) < 12 and kept == ids[-len(kept):]
        with pytest.raises(openai.BadRequestError, match="the store holds 8000"):
            ask(own, metadata={str(i): "v" * 512 for i in range(16)})
        time.sleep(2.5)
        assert not own.chat.completions.list().data
