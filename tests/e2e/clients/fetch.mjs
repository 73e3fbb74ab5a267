// Node's fetch against a server: node fetch.mjs URL MODEL. Whole answers, streams, errors, and a client that leaves.
import assert from 'node:assert/strict';

const [url, model] = process.argv.slice(2);
const messages = [{role: 'user', content: 'Hello!'}];

function post(body, options = {}) {
  const headers = {'Content-Type': 'application/json'};
  return fetch(`${url}/v1/chat/completions`, {method: 'POST', headers, body: JSON.stringify(body), ...options});
}

async function* events(reply) {
  let rest = '';
  for await (const text of reply.body.pipeThrough(new TextDecoderStream())) {
    const parts = (rest + text).split('\n\n');
    rest = parts.pop();
    yield* parts.map((part) => part.slice('data: '.length));
  }
  assert.equal(rest, '');
}

const whole = await (await post({model, messages, temperature: 0, max_tokens: 40})).json();
const text = whole.choices[0].message.content;
assert.ok(text.length > 0);

const reply = await post({model, messages, temperature: 0, max_tokens: 40, stream: true});
assert.match(reply.headers.get('content-type'), /^text\/event-stream/);
let streamed = '';
let last;
for await (const event of events(reply)) {
  last = event;
  if (event !== '[DONE]') streamed += JSON.parse(event).choices[0]?.delta.content ?? '';
}
assert.equal(streamed, text);
assert.equal(last, '[DONE]');

const refused = await post({model: 'no-such-model', messages});
assert.equal(refused.status, 404);
assert.equal((await refused.json()).error.code, 'model_not_found');

const leaving = new AbortController();
const long = await post({model, messages, max_tokens: 1500, ignore_eos: true, stream: true}, {signal: leaving.signal});
await assert.rejects(async () => {
  for await (const _ of events(long)) leaving.abort();
}, {name: 'AbortError'});

const lists = await Promise.all(Array.from({length: 32}, () => fetch(`${url}/v1/models`).then((list) => list.json())));
assert.ok(lists.every((list) => list.data[0].id === model));
