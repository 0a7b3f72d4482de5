// Workload client on @grpc/grpc-js: `grpc_client.js PLAN`. In and out: integration/src/rpc/plan.rs. Knows nothing of the
// agent.
'use strict';
const fs = require('node:fs');
const grpc = require('@grpc/grpc-js');

const plan = JSON.parse(fs.readFileSync(process.argv[2], 'utf8'));
const options = { 'grpc.enable_retries': 0 };
let trust = grpc.credentials.createInsecure();
if (plan.certificate) {
  trust = grpc.credentials.createSsl(fs.readFileSync(plan.certificate));
  options['grpc.ssl_target_name_override'] = plan.authority;
}
const client = new grpc.Client(plan.target, trust, options);
const raw = (bytes) => bytes;

function run(call) {
  const begun = process.hrtime.bigint();
  const wall = BigInt(Date.now()) * 1000000n;
  const message = Buffer.alloc(call.bytes);
  const metadata = new grpc.Metadata();
  metadata.set('traceparent', `00-${call.id}-${call.id.slice(0, 16)}-01`);
  metadata.set('shape', call.shape);
  const deadline = call.end === 'deadline' ? { deadline: Date.now() + call.timeout_ms } : {};
  const stream = client.makeBidiStreamRequest(`/test.Shape/${call.method}`, raw, raw, metadata, deadline);
  let sent = 0;
  let received = 0;
  const isChat = call.method === 'Chat';
  // Once a failure has come, this library hands over nothing any more, not even what came before it
  // (maybeOutputStatus): so the end of this side tells the handler that its messages have been read.
  const code = Number(call.shape.split('/')[2]);
  const confirms = call.method === 'Expand' && call.end === 'status' && code > 0 && call.responses > 0;
  const send = () => {
    sent += 1;
    stream.write(message);
  };
  const finish = () => {
    if (call.end !== 'cancel' || call.method === 'Expand' || call.method === 'Unary') stream.end();
  };
  return new Promise((resolve) => {
    stream.on('data', () => {
      received += 1;
      if (call.end === 'cancel' && received === call.responses) stream.cancel();
      else if (isChat && sent < call.requests) send();
      else if (isChat || (confirms && received === call.responses)) finish();
    });
    stream.on('error', () => {});
    stream.on('status', (status) => {
      const ended = wall + (process.hrtime.bigint() - begun);
      const line = { id: call.id, code: status.code, sent, received, started_ns: Number(wall), ended_ns: Number(ended) };
      fs.writeSync(1, JSON.stringify(line) + '\n');
      resolve();
    });
    if (isChat) {
      if (call.requests) send();
      else finish();
    } else {
      while (sent < call.requests) send();
      if (!confirms) finish();
    }
    if (call.end === 'cancel' && call.responses === 0) stream.cancel();
  });
}

const calls = plan.calls.values();
async function work() {
  for (const call of calls) await run(call);
}
Promise.all(Array.from({ length: plan.concurrency }, work)).then(() => client.close());
