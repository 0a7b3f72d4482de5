// Workload client of gRPC-Web on Node's `http`: `grpc_web_client.js PLAN`. In and out: integration/src/rpc/plan.rs, with
// `text` for Base64. Knows nothing of the agent.
'use strict';
const fs = require('node:fs');
const http = require('node:http');

const plan = JSON.parse(fs.readFileSync(process.argv[2], 'utf8'));
const agent = new http.Agent({ keepAlive: true, maxSockets: plan.concurrency });
const TRAILERS = 0x80;

function encode(message) {
  const prefix = Buffer.alloc(5);
  prefix.writeUInt32BE(message.length, 1);
  const body = Buffer.concat([prefix, message]);
  return plan.text ? Buffer.from(body.toString('base64')) : body;
}

// Servers encode each piece by itself, padding included.
function decode(body) {
  if (!plan.text) return body;
  const text = body.toString();
  const quanta = [];
  for (let at = 0; at < text.length; at += 4) quanta.push(Buffer.from(text.slice(at, at + 4), 'base64'));
  return Buffer.concat(quanta);
}

// Messages, and the status of the trailers, if they are in the body.
function read(body) {
  let received = 0;
  let code;
  for (let at = 0; at + 5 <= body.length; ) {
    const end = at + 5 + body.readUInt32BE(at + 1);
    if (body[at] & TRAILERS) code = Number(/grpc-status:\s*(\d+)/i.exec(body.toString('latin1', at + 5, end))[1]);
    else received += 1;
    at = end;
  }
  return { received, code };
}

function run(call) {
  const begun = process.hrtime.bigint();
  const wall = BigInt(Date.now()) * 1000000n;
  const body = encode(Buffer.alloc(call.bytes));
  const type = plan.text ? 'application/grpc-web-text+proto' : 'application/grpc-web+proto';
  const headers = {
    'content-type': type,
    accept: type,
    'content-length': body.length,
    'x-grpc-web': '1',
    traceparent: `00-${call.id}-${call.id.slice(0, 16)}-01`,
    shape: call.shape,
  };
  const path = `/test.Shape/${call.method}`;
  return new Promise((resolve, reject) => {
    const request = http.request({ host: '127.0.0.1', port: plan.port, method: 'POST', path, headers, agent }, (response) => {
      const pieces = [];
      response.on('data', (piece) => pieces.push(piece));
      response.on('end', () => {
        const { received, code } = read(decode(Buffer.concat(pieces)));
        const ended = wall + (process.hrtime.bigint() - begun);
        const status = Number(response.headers['grpc-status'] ?? code);
        const line = { id: call.id, code: status, sent: 1, received, started_ns: Number(wall), ended_ns: Number(ended) };
        fs.writeSync(1, JSON.stringify(line) + '\n');
        resolve();
      });
    });
    request.on('error', reject);
    request.end(body);
  });
}

const calls = plan.calls.values();
async function work() {
  for (const call of calls) await run(call);
}
Promise.all(Array.from({ length: plan.concurrency }, work)).then(() => agent.destroy());
