// Workload client on Node's http and https: `client.js PLAN`. In: a plan (integration/src/plan.rs). Out: one JSON line per
// call on stdout: what was sent and what came back. Knows nothing of the agent.
'use strict';
const fs = require('node:fs');

const plan = JSON.parse(fs.readFileSync(process.argv[2], 'utf8'));
const http = plan.tls ? require('node:https') : require('node:http');
const agent = new http.Agent({ keepAlive: true, maxSockets: plan.concurrency, rejectUnauthorized: false });

function run(call) {
  const { method, target: path } = call;
  const begun = process.hrtime.bigint();
  return new Promise((resolve, reject) => {
    const headers = {};
    if (call.request_framing === 'length') headers['content-length'] = call.request_bytes;
    if (call.request_framing === 'chunked') headers['transfer-encoding'] = 'chunked';
    const request = http.request({ host: plan.host, port: plan.port, method, path, headers, agent }, (response) => {
      let received = 0;
      response.on('data', (data) => (received += data.length));
      response.on('error', reject);
      response.on('end', () => {
        const handler = response.headers['x-handler-ns'];
        const line = {
          id: call.id,
          status: response.statusCode,
          request_bytes: call.request_bytes,
          response_bytes: received,
          handler_ns: handler ? Number(handler) : null,
          started_ns: Number(begun),
          ended_ns: Number(process.hrtime.bigint()),
        };
        fs.writeSync(1, JSON.stringify(line) + '\n');
        resolve();
      });
    });
    request.on('error', reject);
    if (call.request_framing !== 'none' && call.request_bytes) request.write(Buffer.alloc(call.request_bytes, 'q'));
    request.end();
  });
}

const calls = plan.calls.values();
async function work() {
  for (const call of calls) await run(call);
}
Promise.all(Array.from({ length: plan.concurrency }, work)).then(() => agent.destroy());
