// Workload server on @grpc/grpc-js: `grpc_server.js LOG [CERTIFICATE KEY]`. The protocol is that of multiplex/grpc.go.
// Prints `ready PORT`; one JSON line per call in LOG. Knows nothing of the agent.
'use strict';
const fs = require('node:fs');
const grpc = require('@grpc/grpc-js');

const [, , file, certificate, key] = process.argv;
const log = fs.openSync(file, 'w');
const sleep = (microseconds) => new Promise((resolve) => setTimeout(resolve, microseconds / 1000));

async function handle(kind, stream) {
  const begun = process.hrtime.bigint();
  const [responses, bytes, code, delay, hold] = stream.metadata.get('shape')[0].split('/').map(Number);
  const message = Buffer.alloc(bytes);
  const done = { id: stream.metadata.get('traceparent')[0].split('-')[1], received: 0, sent: 0 };
  const cancelled = new Promise((resolve) => stream.on('cancelled', resolve));
  const send = () => {
    done.sent += 1;
    stream.write(message);
  };
  stream.on('error', () => {});
  const ended = new Promise((resolve) => stream.on('end', resolve));
  await new Promise((resolve) => {
    stream.on('data', () => {
      done.received += 1;
      if (kind === 'Chat') send();
      if (kind === 'Unary' || kind === 'Expand') resolve();
    });
    ended.then(resolve);
    cancelled.then(resolve);
  });
  await sleep(delay);
  while (kind === 'Expand' && done.sent < responses) send();
  if (hold) {
    await cancelled;
  } else if (code) {
    // A client may lose messages that a failure follows closely; one that does ends its side when it has them.
    if (kind === 'Expand') await Promise.race([ended, cancelled]);
    stream.emit('error', { code, details: 'as asked: 100% \u00fc' });
  } else {
    if (kind === 'Unary' || kind === 'Collect') send();
    stream.end();
  }
  done.handler_ns = Number(process.hrtime.bigint() - begun);
  fs.writeSync(log, JSON.stringify(done) + '\n');
}

const raw = (bytes) => bytes;
const server = new grpc.Server({ 'grpc.max_concurrent_streams': 4096 });
const service = {};
const handlers = {};
for (const kind of ['Unary', 'Collect', 'Expand', 'Chat']) {
  service[kind] = {
    path: `/test.Shape/${kind}`,
    requestStream: true,
    responseStream: true,
    requestSerialize: raw,
    requestDeserialize: raw,
    responseSerialize: raw,
    responseDeserialize: raw,
  };
  handlers[kind] = (stream) => handle(kind, stream);
}
server.addService(service, handlers);
const read = (name) => fs.readFileSync(name);
const identity = certificate
  ? grpc.ServerCredentials.createSsl(null, [{ cert_chain: read(certificate), private_key: read(key) }])
  : grpc.ServerCredentials.createInsecure();
server.bindAsync('127.0.0.1:0', identity, (error, port) => {
  if (error) throw error;
  console.log('ready', port);
});
