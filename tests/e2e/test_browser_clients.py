"""JavaScript clients: a page of another origin in headless Chromium, and Node's fetch."""

import http.server
import pathlib
import shutil
import subprocess
import threading

import pytest

from serving import Server

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
NODE = shutil.which("node")
CLIENTS = pathlib.Path(__file__).parent / "clients"

# What OpenAI's client for JavaScript sends besides the key: a browser asks for leave before it sends them.
ASK = """async ([url, model, stream]) => {
  const headers = {
    'Authorization': 'Bearer secret', 'Content-Type': 'application/json', 'X-Stainless-Lang': 'js',
    'X-Stainless-Retry-Count': '0', 'X-Stainless-Timeout': '600',
  };
  const messages = [{role: 'user', content: 'Tell me a story.'}];
  const body = JSON.stringify({model, messages, stream, temperature: 0, max_tokens: 400, ignore_eos: true});
  const reply = await fetch(url + '/v1/chat/completions', {method: 'POST', headers, body});
  const id = reply.headers.get('x-request-id');
  if (!stream) return {status: reply.status, id, text: (await reply.json()).choices[0].message.content};
  let text = '', rest = '';
  for (const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();;) {
    const {done, value} = await reader.read();
    if (done) break;
    const lines = (rest + value).split('\\n\\n');
    rest = lines.pop();
    for (const line of lines) {
      if (line !== 'data: [DONE]') text += JSON.parse(line.slice(6)).choices[0]?.delta.content ?? '';
    }
  }
  return {status: reply.status, id, text};
}"""


class Page(http.server.BaseHTTPRequestHandler):
    """An empty page, which is all that a page of another origin needs."""

    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!doctype html><title>another origin</title>")

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def origins():
    """Serves the page at two origins and yields them."""
    sites = [http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page) for _ in range(2)]
    for site in sites:
        threading.Thread(target=site.serve_forever, daemon=True).start()
    yield [f"http://127.0.0.1:{site.server_port}" for site in sites]
    for site in sites:
        site.shutdown()
        site.server_close()


@pytest.fixture(scope="module")
def guarded(origins):
    """A server with a key that only pages of the first origin may call."""
    with Server("--api-key", "secret", "--allowed-origins", origins[0]) as running:
        yield running


@pytest.fixture(scope="module")
def browser():
    if CHROMIUM is None:
        pytest.skip("there is no Chromium here (./dev setup installs it)")
    playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
    with playwright.sync_playwright() as started:
        launched = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-dev-shm-usage"])
        yield launched
        launched.close()


@pytest.fixture
def ask(browser, guarded):
    """Opens a page of an origin and asks the server from there."""
    with browser.new_context() as context:

        def from_page(origin, stream):
            page = context.new_page()
            page.goto(origin)
            return page.evaluate(ASK, [guarded.url, guarded.name, stream])

        yield from_page


def test_a_page_of_an_allowed_origin_is_answered(ask, origins, guarded):
    expected = guarded.client("secret").chat.completions.create(
        model=guarded.name,
        messages=[{"role": "user", "content": "Tell me a story."}],
        temperature=0,
        max_tokens=400,
        extra_body={"ignore_eos": True},
    )
    for stream in (False, True):
        answer = ask(origins[0], stream)
        assert answer["status"] == 200 and answer["text"] == expected.choices[0].message.content
        assert answer["id"], "pages may not read X-Request-Id"


def test_a_page_of_any_other_origin_is_not_answered(ask, origins):
    with pytest.raises(Exception, match="Failed to fetch"):
        ask(origins[1], False)


@pytest.mark.skipif(NODE is None, reason="there is no Node here (./dev setup installs it)")
def test_fetch_of_node(server):
    done = subprocess.run(
        [NODE, CLIENTS / "fetch.mjs", server.url, server.name], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
