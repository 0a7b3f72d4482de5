// Workload client on Node's http2: `http2_client.js PLAN`. In: a plan (integration/src/plan.rs). Out: one JSON line per
// call on stdout. All calls go over one connection, `concurrency` streams at a time. Knows nothing of the agent.
'use strict';
const fs = require('node:fs');
const http2 = require('node:http2');

const plan = JSON.parse(fs.readFileSync(process.argv[2], 'utf8'));
const authority = plan.certificate ? { ca: fs.readFileSync(plan.certificate) } : {};
const scheme = plan.certificate ? 'https' : 'http';
const session = http2.connect(`${scheme}://${plan.host}:${plan.port}`, authority);

function run(call) {
  const begun = process.hrtime.bigint();
  const headers = { ':method': call.method, ':path': call.target };
  if (call.request_framing === 'length') headers['content-length'] = call.request_bytes;
  return new Promise((resolve, reject) => {
    const stream = session.request(headers, { endStream: call.request_framing === 'none' });
    let received = 0;
    let answer = {};
    stream.on('response', (fields) => (answer = fields));
    stream.on('data', (data) => (received += data.length));
    stream.on('error', reject);
    stream.on('close', () => {
      const handler = answer['x-handler-ns'];
      const line = {
        id: call.id,
        status: answer[':status'],
        request_bytes: call.request_bytes,
        response_bytes: received,
        handler_ns: handler ? Number(handler) : null,
        started_ns: Number(begun),
        ended_ns: Number(process.hrtime.bigint()),
      };
      fs.writeSync(1, JSON.stringify(line) + '\n');
      resolve();
    });
    if (call.request_framing !== 'none') stream.end(Buffer.alloc(call.request_bytes, 'q'));
  });
}

const calls = plan.calls.values();
async function work() {
  for (const call of calls) await run(call);
}
Promise.all(Array.from({ length: plan.concurrency }, work)).then(() => session.close());
