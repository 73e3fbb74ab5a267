"""The web page in headless Chromium: the chat, the dashboard, hostile output, accessibility."""

import json
import re
import shutil
import time

import pytest

from serving import MODEL, Server

playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is not installed")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here (./dev setup installs it)")

LONG = {"values": {"ignore_eos": True, "max_tokens": 900, "temperature": 0}}
ANSWER = ".message.assistant"
DONE = f"{ANSWER}:last-child[aria-busy=false]"
# Collects when and how the last answer's text grows.
WATCH = """() => {
  window.grown = [];
  const begin = performance.now();
  new MutationObserver(() => {
    const length = [...document.querySelectorAll('.message.assistant .text')].at(-1)?.textContent.length ?? 0;
    if (length > (window.grown.at(-1)?.length ?? 0)) window.grown.push({length, at: performance.now() - begin});
  }).observe(document.getElementById('messages'), {subtree: true, childList: true, characterData: true});
}"""


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as started:
        launched = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-dev-shm-usage"])
        yield launched
        launched.close()


@pytest.fixture
def visit(browser):
    """Opens a page in a profile of its own. Fails when a script fails or something breaks the policy."""
    contexts, problems = [], []

    def open_page(url, settings=None, ready="body[data-ready]", before=lambda page: None, **options):
        context = browser.new_context(**{"viewport": {"width": 1180, "height": 760}, **options})
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(15_000)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("console", lambda m: problems.append(m.text) if "Content Security Policy" in m.text else None)
        page.on("dialog", lambda dialog: dialog.accept())
        if settings is not None:
            page.add_init_script(f"localStorage.setItem('sluice.settings', {json.dumps(json.dumps(settings))})")
        before(page)
        page.goto(url)
        page.wait_for_selector(ready)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert problems == []


def send(page, text):
    page.fill("#input", text)
    page.press("#input", "Enter")


def ask(page, text):
    send(page, text)
    page.wait_for_selector(DONE)
    return page.inner_text(f"{ANSWER}:last-child .text")


def until(page, function):
    """Like page.wait_for_function, which would need the policy to allow eval."""
    end = time.monotonic() + 15
    while not page.evaluate(function):
        assert time.monotonic() < end, f"never: {function}"
        page.wait_for_timeout(20)


def event(delta, finish=None, usage=None):
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}], "usage": usage}


def stub(page, *answers):
    """Answers chat requests with these lists of deltas, the last one again and again. Returns the bodies."""
    bodies = []

    def fulfill(route):
        bodies.append(route.request.post_data_json)
        deltas = answers[min(len(bodies), len(answers)) - 1]
        sent = [event(delta) for delta in deltas] + [event({}, "stop", {"completion_tokens": len(deltas)})]
        text = "".join(f"data: {json.dumps(one)}\n\n" for one in sent) + "data: [DONE]\n\n"
        route.fulfill(status=200, content_type="text/event-stream", body=text)

    page.route("**/v1/chat/completions", fulfill)
    return bodies


def serious_faults(page):
    found = axe.Axe().run(page).response["violations"]
    return [(v["id"], n["html"]) for v in found if v["impact"] in ("serious", "critical") for n in v["nodes"]]


def test_an_answer_streams(server, visit):
    page = visit(server.url, settings=LONG)
    page.evaluate(WATCH)
    text = ask(page, "Tell me a story about a clever mouse.")
    grown = page.evaluate("window.grown")
    assert len(grown) >= 3, "the text did not grow step by step"
    assert grown[0]["at"] < 1000, "the first token came too late"
    assert len(text) > 500
    assert re.search(r"[\d.]+ tokens/s · TTFT \d+ ms · 900 tokens", page.inner_text(DONE))
    assert page.inner_text("#title") == "Tell me a story about a clever mouse."


@pytest.fixture(scope="module")
def slow_server():
    """Computes with the scalar code on one thread: an answer takes seconds."""
    with Server("--backend", "reference", "--threads", "1") as running:
        yield running


@pytest.mark.parametrize("how", ["button", "Escape"])
def test_stop(slow_server, visit, how):
    page = visit(slow_server.url, settings={"values": {"ignore_eos": True, "max_tokens": 1500}})
    send(page, "Tell me a story.")
    until(page, "() => document.querySelector('.message.assistant .text')?.textContent.length > 20")
    page.click("#stop") if how == "button" else page.keyboard.press("Escape")
    page.wait_for_selector(DONE)
    assert not page.is_visible("#stop") and page.is_visible("#send")
    kept = page.inner_text(f"{ANSWER} .text")
    assert len(kept) > 20
    assert "1500 tokens" not in page.inner_text(DONE)
    slow_server.wait_idle()
    page.reload()
    page.wait_for_selector(DONE)
    assert page.inner_text(f"{ANSWER} .text") == kept


def test_edit_regenerate_and_branches(server, visit):
    page = visit(server.url)
    bodies = stub(page, [{"content": "first"}], [{"content": "second"}], [{"content": "third"}])
    assert ask(page, "one") == "first"
    page.click(f"{ANSWER} >> text=Regenerate")
    until(page, "() => document.querySelector('.message.assistant .text')?.textContent === 'second'")
    assert "2 / 2" in page.inner_text(ANSWER)
    page.click("[aria-label='Previous branch']")
    assert page.inner_text(f"{ANSWER} .text") == "first"
    page.click(".message.user >> text=Edit")
    page.fill(".editor textarea", "two")
    page.click(".editor >> text=Send")
    until(page, "() => document.querySelector('.message.assistant .text')?.textContent === 'third'")
    assert [[m["content"] for m in body["messages"]] for body in bodies] == [["one"], ["one"], ["two"]]
    page.click(".message.user [aria-label='Previous branch']")
    assert page.inner_text(".message.user .text") == "one"
    assert page.inner_text(f"{ANSWER} .text") == "second", "a branch opens at its newest message"


def test_a_reload_keeps_conversations(server, visit):
    page = visit(server.url)
    stub(page, [{"content": "An answer."}])
    ask(page, "Keep this")
    page.click("#new")
    ask(page, "And this")
    page.reload()
    page.wait_for_selector("body[data-ready]")
    assert page.locator("#conversations .name").all_inner_texts() == ["And this", "Keep this"]
    page.click("#conversations >> text=Keep this")
    assert page.inner_text(f"{ANSWER} .text") == "An answer."
    page.hover("#conversations li:nth-child(2)")
    page.click("[aria-label='Delete Keep this']")
    page.reload()
    page.wait_for_selector("body[data-ready]")
    assert page.locator("#conversations .name").all_inner_texts() == ["And this"]


def test_the_key_is_asked_for_and_refused(visit):
    with Server("--api-key", "right") as server:
        page = visit(server.url, ready="#key[open]")
        page.fill("#key-input", "wrong")
        page.press("#key-input", "Enter")
        page.wait_for_selector("#key[open] >> text=refused")
        page.fill("#key-input", "right")
        page.click("#key-save")
        page.wait_for_selector("body[data-ready]")
        assert ask(page, "Hello")
        kept = page.evaluate("[sessionStorage.getItem('sluice.key'), JSON.stringify(localStorage)]")
        assert kept[0] == "right" and "right" not in kept[1]
        page.reload()
        page.wait_for_selector("body[data-ready]")
        page.click("#forget-key")
        page.reload()
        page.wait_for_selector("#key[open]")


HOSTILE = {
    "script": "<script>window.hacked = 1</script><img src=x onerror='window.hacked = 1'>",
    "block": "text\n\n<div onclick='window.hacked = 1'>\n<svg onload='window.hacked = 1'></svg>\n</div>\n",
    "link": "[click](javascript:window.hacked=1) [tab](java\tscript:alert(1)) <javascript:alert(1)>",
    "data": "[d](data:text/html,<script>window.hacked=1</script>)",
    "image": "![x](https://evil.example/pixel.png) ![y](javascript:alert(1)) ![z](data:image/svg+xml,<svg/>)",
    "entity": "[e](&#106;avascript:alert(1)) [v](vbscript:x) [r]\n\n[r]: javascript:alert(1)",
    "formula": r"$\href{javascript:alert(1)}{x}$ $\htmlStyle{color:red}{x}$ $\includegraphics{https://evil.example/a}$",
    "language": "```\"><script>window.hacked=1</script>\ncode\n```",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_output_is_text(server, visit, name):
    page = visit(server.url)
    requests = []
    page.on("request", lambda request: requests.append(request.url))
    stub(page, [{"content": HOSTILE[name]}])
    ask(page, "<img src=x onerror='window.hacked = 1'>")
    page.wait_for_timeout(300)
    assert page.evaluate("window.hacked") is None
    bad = "script, img, svg, iframe, object, embed, style, [onclick], [onload], [onerror], [style]"
    assert page.locator("#messages").locator(bad).count() == 0
    links = page.eval_on_selector_all("#messages a", "links => links.map(link => link.href)")
    assert all(link.startswith(("https://", "http://", "mailto:")) for link in links)
    assert all(url.startswith(server.url) for url in requests)


def test_bidi_controls_are_visible(server, visit):
    page = visit(server.url)
    stub(page, [{"content": "open \u202egnp.exe\u202c now, and \u05e9\u05dc\u05d5\u05dd `\u2066x`"}])
    text = ask(page, "\u202eabc")
    assert "\u202e" not in page.inner_text("body") and "U+202E" in text and "U+2066" in text
    assert "\u05e9\u05dc\u05d5\u05dd" in text


HUGE = [
    "word **bold** `x` [a](b) " * 60_000, "word **bold**\n\n" * 6000, "> " * 20_000 + "x", "[" * 50_000,
    "*a_ " * 30_000,
    "$$ \\[ \\( $ " * 8000, "$$ x\n\\[ y\n" * 9000, "- x\n  " * 3000, "|a|b" * 20_000, "`" * 60_000, "<a " * 30_000,
]


@pytest.mark.parametrize("text", HUGE, ids=range(len(HUGE)))
def test_huge_markdown_does_not_block_the_page(server, visit, text):
    page = visit(server.url)
    stub(page, [{"content": text}])
    send(page, "big")
    page.wait_for_selector(DONE)
    assert page.inner_text(f"{ANSWER} .text") != ""
    assert page.evaluate("1 + 1") == 2


def test_markdown_code_and_formulas(server, visit):
    page = visit(server.url)
    stub(page, [{"content": "# Title\n\n**bold** and $x^2$ cost $5 or $6\n\n$$\\frac{a}{b}$$\n\n"
                            "| a | b |\n|--|--|\n| 1 | 2 |\n\n```python\nif a < b & c:\n    pass\n```\n\n"
                            "[site](https://example.com/?a=1&b=2)"}])
    ask(page, "x")
    page.wait_for_selector(f"{ANSWER} .display math mfrac")
    assert page.locator(f"{ANSWER} math").count() == 2
    assert page.inner_text(f"{ANSWER} pre") == "if a < b & c:\n    pass"
    assert page.get_attribute(f"{ANSWER} a", "href") == "https://example.com/?a=1&b=2"
    assert page.inner_text(f"{ANSWER} td >> nth=1") == "2" and page.inner_text(f"{ANSWER} h3") == "Title"
    assert "cost $5 or $6" in page.inner_text(f"{ANSWER} .text")


def test_reasoning_is_folded_and_tools_are_answered(server, visit):
    tool = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
    page = visit(server.url, settings={"tools": json.dumps([tool])})
    begin = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "weather", "arguments": ""}}
    part = {"index": 0, "function": {"arguments": '{"city":"Rome"}'}}
    bodies = stub(page, [{"reasoning_content": "I look it up."}, {"tool_calls": [begin]}, {"tool_calls": [part]}],
                  [{"content": "It is sunny."}])
    send(page, "How is the weather in Rome?")
    page.wait_for_selector(".results")
    assert bodies[0]["tools"] == [tool]
    assert not page.is_visible(f"{ANSWER} .reasoning-text")
    page.click(f"{ANSWER} .reasoning summary")
    assert page.inner_text(f"{ANSWER} .reasoning-text") == "I look it up."
    assert '"city": "Rome"' in page.inner_text(".call")
    page.fill(".results textarea", "sunny")
    page.click("text=Send results")
    page.wait_for_selector("text=It is sunny.")
    assert bodies[1]["messages"][1]["tool_calls"][0]["function"] == {"name": "weather", "arguments": '{"city":"Rome"}'}
    assert bodies[1]["messages"][2] == {"role": "tool", "tool_call_id": "call_1", "content": "sunny"}


def test_settings_reach_the_request(server, visit):
    page = visit(server.url)
    bodies = stub(page, [{"content": "ok"}])
    page.click("#open-settings")
    page.fill("#system", "Be brief.")
    page.fill("#set-temperature", "3")
    assert "0 to 2" in page.inner_text(".setting:has(#set-temperature) .problem")
    page.fill("#set-temperature", "0.5")
    page.fill("#set-seed", "7")
    page.click("text=JSON schema of the answer")
    page.fill("#schema", "{")
    assert page.inner_text("#schema-problem") != ""
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    page.fill("#schema", json.dumps(schema))
    page.keyboard.press("Escape")
    ask(page, "x")
    body = bodies[0]
    assert body["temperature"] == 0.5 and body["seed"] == 7 and body["model"] == server.name
    assert body["response_format"]["json_schema"]["schema"] == schema
    assert body["messages"][0] == {"role": "system", "content": "Be brief."}
    page.unroute("**/v1/chat/completions")
    page.click("#new")
    assert isinstance(json.loads(ask(page, "Give me a number."))["a"], int)


def test_errors_are_shown_and_can_be_tried_again(server, visit):
    page = visit(server.url, settings={"values": {"max_tokens": 10_000_000}})
    send(page, "x")
    page.wait_for_selector(f"{ANSWER} .failure:visible")
    assert "maximum context length" in page.inner_text(f"{ANSWER} .failure")
    page.evaluate("localStorage.clear()")
    page.click("#open-settings")
    page.click("#reset")
    page.keyboard.press("Escape")
    page.click(f"{ANSWER} >> text=Regenerate")
    page.wait_for_selector(f"{DONE} .stats:has-text('TTFT')")


def test_export_and_import(server, visit, tmp_path):
    page = visit(server.url)
    stub(page, [{"content": "An answer."}])
    ask(page, "Take this along")
    with page.expect_download() as download:
        page.click("#export")
    path = tmp_path / "export.json"
    download.value.save_as(path)
    other = visit(server.url)
    other.set_input_files("#import-file", path)
    other.wait_for_selector(f"{ANSWER} >> text=An answer.")
    for wrong in ("{", '{"format":"x"}', path.read_text().replace('"assistant"', '"root"')):
        (tmp_path / "wrong.json").write_text(wrong)
        other.evaluate("document.getElementById('notice').textContent = ''")
        other.set_input_files("#import-file", tmp_path / "wrong.json")
        other.wait_for_selector("#notice >> text=cannot be imported")
    assert other.locator("#conversations li").count() == 1


def test_phone_width(server, visit):
    page = visit(server.url, viewport={"width": 360, "height": 640}, has_touch=True, is_mobile=True)
    table = "|" + "wide header|" * 9 + "\n|" + "--|" * 9
    stub(page, [{"content": f"A wide line: {'x' * 400}\n\n```\n{'y' * 400}\n```\n\n{table}"}])
    ask(page, "x")
    for target in (server.url, server.url + "/dashboard"):
        page.goto(target)
        page.wait_for_timeout(300)
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
    page.goto(server.url)
    page.wait_for_selector("body[data-ready]")
    box = page.locator("#send").bounding_box()
    assert box["y"] + box["height"] <= 640 and box["width"] >= 40
    assert not page.locator("#new").is_visible() or page.locator("#sidebar").bounding_box()["x"] < 0
    page.click("#open-sidebar")
    until(page, "() => document.getElementById('sidebar').getBoundingClientRect().x === 0")
    page.keyboard.press("Escape")
    until(page, "() => document.getElementById('sidebar').getBoundingClientRect().right <= 0")


def test_dark_and_light(server, visit):
    color = "getComputedStyle(document.body).backgroundColor"
    light = visit(server.url, color_scheme="light").evaluate(color)
    page = visit(server.url, color_scheme="dark")
    dark = page.evaluate(color)
    assert light == "rgb(246, 248, 249)" and dark == "rgb(16, 24, 28)"
    page.click("#theme")
    page.reload()
    page.wait_for_selector("body[data-ready]")
    assert page.inner_text("#theme") == "Theme: light" and page.evaluate(color) == light


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_serious_fault_of_accessibility(server, visit, scheme):
    page = visit(server.url, color_scheme=scheme)
    assert serious_faults(page) == []
    text = ("# T\n\ntext `code` [a](https://b.c) $x$\n\n- [x] done\n\n```c\nint a;\n```\n\n> quote\n\n"
            "|a|b|\n|-|-|\n|1|2|\n\n\u202ex")
    stub(page, [{"reasoning_content": "Hm."}, {"content": text}])
    ask(page, "x")
    page.click(f"{ANSWER} >> text=Regenerate")
    page.wait_for_selector("text=2 / 2")
    page.wait_for_selector(DONE)
    assert serious_faults(page) == []
    page.click(".message.user >> text=Edit")
    assert serious_faults(page) == []
    page.click("#open-settings")
    for summary in page.locator("#settings summary").all():
        summary.click()
    assert serious_faults(page) == []
    dashboard = visit(server.url + "/dashboard", ready=".state.live", color_scheme=scheme)
    assert serious_faults(dashboard) == []


def test_keyboard_alone(server, visit):
    page = visit(server.url)
    stub(page, [{"content": "ok"}])
    assert page.evaluate("document.activeElement.id") == "input"
    page.keyboard.type("line one")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("line two")
    page.keyboard.press("Enter")
    page.wait_for_selector(DONE)
    assert page.inner_text(".message.user .text") == "line one\nline two"
    assert page.inner_text("#status") == "The answer is complete"
    page.keyboard.press("Shift+Tab")
    reached = []
    for _ in range(12):
        reached.append(page.evaluate("document.activeElement.textContent.trim()"))
        page.keyboard.press("Shift+Tab")
    assert {"Regenerate", "Copy", "Edit", "Settings"} <= set(reached)


@pytest.mark.parametrize("secure", [True, False], ids=["clipboard", "without the clipboard's interface"])
def test_copy(server, visit, secure):
    hide = "Object.defineProperty(Navigator.prototype, 'clipboard', {value: undefined})"
    page = visit(server.url, permissions=["clipboard-read", "clipboard-write"],
                 before=lambda page: None if secure else page.add_init_script(hide))
    stub(page, [{"content": "Take `this`:\n\n```\ncode\n```"}])
    ask(page, "x")
    page.click(f"{ANSWER} .code-block >> text=Copy")
    page.wait_for_selector(f"{ANSWER} .code-block >> text=Copied")
    page.evaluate("document.getElementById('input').focus()")
    page.keyboard.press("Control+V")
    assert page.input_value("#input") == "code"
    page.fill("#input", "")
    page.click(f"{ANSWER} .foot >> text=Copy")
    page.wait_for_selector("#status >> text=Copied", state="attached")
    page.focus("#input")
    page.keyboard.press("Control+V")
    assert page.input_value("#input").startswith("Take `this`:")


def test_the_load_is_shown(server, visit):
    answers = [{"status": "loading", "progress": 0.25}] * 2 + [{"status": "ok"}]

    def before(page):
        page.route("**/health", lambda route: route.fulfill(json=answers.pop(0) if len(answers) > 1 else answers[0]))

    page = visit(server.url, ready="#loading:visible", before=before)
    assert "25 %" in page.inner_text("#loading-text")
    page.wait_for_selector("body[data-ready]")
    assert not page.is_visible("#loading")


def dashboard(visit, url, **options):
    return visit(url + "/dashboard", **{"ready": ".state.live", **options})


def test_dashboard(server, client, model, visit):
    asked = []
    page = dashboard(visit, server.url, before=lambda page: page.on("request", lambda one: asked.append(one.url)))
    before = int(page.inner_text(".tile:has-text('Finished') .value"))
    client.chat.completions.create(model=model, max_tokens=20, messages=[{"role": "user", "content": "Hello"}])
    end = time.monotonic() + 15
    while int(page.inner_text(".tile:has-text('Finished') .value")) <= before:
        assert time.monotonic() < end
        page.wait_for_timeout(50)
    assert page.locator("figure").count() == 6
    assert re.search(r"p50 [\d.]+", page.inner_text("figure:has-text('TTFT')"))
    assert re.search(r"of [1-9]\d+ blocks with 16 tokens", page.inner_text(".tile:has-text('KV blocks')"))
    assert "KV cache" in page.inner_text("#memory") and "MiB" in page.inner_text("#memory")
    assert page.eval_on_selector("#ttft-limit", "s => s.options.length") > 3
    assert not page.is_visible("#model"), "there is one model"
    paths = [url.removeprefix(server.url) for url in asked]
    assert paths.count("/events") == 1 and "/metrics" not in paths, "one stream has all that the page shows"


def test_the_dashboard_sends_the_key(visit):
    with Server("--api-key", "right") as server:
        page = dashboard(visit, server.url, ready="#key[open]")
        page.fill("#key-input", "right")
        page.click("#key-save")
        page.wait_for_selector(".state.live")


def test_the_dashboard_tells_that_the_server_has_gone(visit):
    with Server() as server:
        page = dashboard(visit, server.url)
        server.terminate()
        assert server.wait() == 0
        page.wait_for_selector(".state.lost >> text=Disconnected, retrying")
        page.wait_for_selector(".state.lost >> text=The server cannot be reached.")
        assert page.locator("figure").count() == 6, "what was seen stays"


def test_the_dashboard_connects_again(server, visit):
    page = dashboard(visit, server.url, ready=".state.lost",
                     before=lambda page: page.route("**/events", lambda route: route.abort()))
    assert page.inner_text("#state") == "Disconnected, retrying: The server cannot be reached."
    page.unroute("**/events")
    page.wait_for_selector(".state.live")
    # A stream that ends after one event leaves a gap.
    one = {"time": time.time(), "models": [{"name": "x", "metrics": {"vllm:num_requests_running": 1}}]}
    page = dashboard(visit, server.url, ready=".state.lost", before=lambda page: page.route(
        "**/events", lambda route: route.fulfill(status=200, content_type="text/event-stream",
                                                 body=f"data: {json.dumps(one)}\n\n")))
    assert page.inner_text("#state") == "Disconnected, retrying: The server has ended the stream."
    page.unroute("**/events")
    page.wait_for_selector(".state.live")


SILENT = """() => {
  const real = window.fetch;
  window.fetch = (path, options) => path !== "/events" || window.heard ? real(path, options) :
    Promise.resolve(new Response(new ReadableStream({start(controller) {
      const one = {time: Date.now() / 1000, models: []};
      controller.enqueue(new TextEncoder().encode(`data: ${JSON.stringify(one)}\n\n`));
      options.signal.addEventListener("abort", () => {
        window.heard = true;
        controller.error(new DOMException("", "AbortError"));
      });
    }})));
}"""


def test_the_dashboard_notices_silence(server, visit):
    page = dashboard(visit, server.url, before=lambda page: page.add_init_script(f"({SILENT})()"))
    page.wait_for_selector(".state.lost >> text=Disconnected, retrying: The server sends nothing.")
    page.wait_for_selector(".state.live")
    page.wait_for_selector(".tile:has-text('KV blocks')")


def test_the_dashboard_shows_one_model_of_several(visit, tmp_path):
    config = tmp_path / "sluice.yaml"
    config.write_text(f"models:\n  - model: {MODEL}\n    served-model-name: one\n"
                      f"  - model: {MODEL}\n    served-model-name: two\n    load: on-demand\n")
    with Server("--config", str(config), model=None) as server:
        page = dashboard(visit, server.url)
        assert "not loaded" in page.inner_text("#memory tr:has-text('two')")
        server.client().completions.create(model="two", prompt="x", max_tokens=4)
        page.wait_for_selector("#memory tr:has-text('two') >> text=KV cache")
        blocks = int(re.search(r"of (\d+) blocks", page.inner_text(".tile:has-text('KV blocks')"))[1])
        finished = ".tile:has-text('Finished') .value"
        assert page.inner_text(finished) == "1"
        page.select_option("#model", "one")
        assert page.inner_text(finished) == "0"
        assert int(re.search(r"of (\d+) blocks", page.inner_text(".tile:has-text('KV blocks')"))[1]) < blocks
        assert page.locator("#memory tr:has-text('two')").count() == 0
        page.select_option("#model", "two")
        assert page.inner_text(finished) == "1"
        assert serious_faults(page) == []
