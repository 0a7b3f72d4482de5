// A service that calls another one: `front.js BACK_PORT LOG`.
//
// As front.py, on Node's one loop: each request `GET /KIND/ID` makes some calls `GET /out/ID`, each with
// an id drawn here, and is answered. LOG gets a line `REQUEST CALL` once the answer to the call has come;
// `- CALL` for calls that no request makes, and `late REQUEST CALL` for those that a request makes after
// its own answer. Prints `ready PORT`. Knows nothing of the agent; ids are in no trace header. SIGTERM
// ends it when its requests and calls are over.
//
// Kinds, by how the calls are made:
//   sequence  one after the other, on connections that are kept
//   fan       three at once, likewise
//   fetch     two at once by `fetch`
//   bounded   three at once by two connections that all requests share: calls queue
//   closing   likewise, and each connection is closed behind its answer
//   limited   three, each when one of two places that all requests share is free
//   awaited   one, behind promises that are kept already
//   file      one, when a file was read, from the callback
//   timer     one, when a timer has run
//   late      one, and one more once the request was answered
'use strict';

const crypto = require('node:crypto');
const fs = require('node:fs');
const http = require('node:http');

const [back, path] = process.argv.slice(2);
const log = fs.openSync(path, 'a');
const kept = new http.Agent({ keepAlive: true });
const few = new http.Agent({ keepAlive: true, maxSockets: 2 });
const closed = new http.Agent({ keepAlive: false, maxSockets: 2 });
let ending = false;
let open = 0;
let begun = false;

const note = (...words) => fs.writeSync(log, words.join(' ') + '\n');
const identifier = () => crypto.randomBytes(16).toString('hex');

function get(agent, out) {
  return new Promise((resolve, reject) => {
    const options = { host: '127.0.0.1', port: Number(back), path: '/out/' + out, agent };
    const request = http.get(options, (answer) => {
      answer.resume();
      answer.on('end', () => {
        if (answer.statusCode === 200) resolve();
        else reject(new Error(`status ${answer.statusCode}`));
      });
    });
    request.on('error', reject);
  });
}

async function fetched(out) {
  const answer = await fetch(`http://127.0.0.1:${back}/out/${out}`);
  await answer.text();
  if (answer.status !== 200) throw new Error(`status ${answer.status}`);
}

async function call(how, ...cause) {
  const out = identifier();
  await how(out);
  note(...cause, out);
}

const by = (agent) => (out) => get(agent, out);
const times = (n, make) => Promise.all(Array.from({ length: n }, make));
const after = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

// Runs `make` when one of the places is free.
let places = 2;
const waiting = [];
async function limited(make) {
  if (places > 0) places--;
  else await new Promise((resolve) => waiting.push(resolve));
  await make();
  const next = waiting.shift();
  if (next) next();
  else places++;
}

const kinds = {
  async sequence(request) {
    for (let n = 0; n < 3; n++) await call(by(kept), request);
  },
  fan: (request) => times(3, () => call(by(kept), request)),
  fetch: (request) => times(2, () => call(fetched, request)),
  bounded: (request) => times(3, () => call(by(few), request)),
  closing: (request) => times(3, () => call(by(closed), request)),
  limited: (request) => times(3, () => limited(() => call(by(kept), request))),
  async awaited(request) {
    for (let n = 0; n < 3; n++) await null;
    await call(by(kept), request);
  },
  file: (request) =>
    new Promise((resolve, reject) => {
      fs.readFile(__filename, (error) => {
        if (error) reject(error);
        else call(by(kept), request).then(resolve, reject);
      });
    }),
  async timer(request) {
    await after(Math.random() * 3);
    await call(by(kept), request);
  },
  late: (request) => call(by(kept), request),
};

async function serve(request, response) {
  begun = true;
  open++;
  const [, kind, id] = request.url.split('/');
  await kinds[kind](id);
  await new Promise((resolve) => response.end('ok', resolve));
  if (kind === 'late') await call(by(kept), 'late', id);
  open--;
}

// Calls that no request makes, from the first request on.
async function background() {
  while (!ending) {
    await after(Math.random() * 50);
    if (begun && !ending) await call(by(kept), '-');
  }
}

const server = http.createServer((request, response) => {
  response.sendDate = false;
  response.setHeader('content-length', '2');
  serve(request, response).catch((error) => {
    console.error(error);
    process.exit(1);
  });
});
server.keepAliveTimeout = 0;
server.listen(0, '127.0.0.1', 1024, () => console.log('ready', server.address().port));
const flushed = background();

process.on('SIGTERM', async () => {
  ending = true;
  await flushed;
  while (open) await after(1);
  process.exit(0);
});
