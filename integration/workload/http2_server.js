// Workload server on Node's http2, in cleartext, or over TLS with `TLS_CERTIFICATE` and `TLS_KEY`. In: requests of the
// protocol in integration/src/shape.rs. Out: answers of exactly that shape. Prints `ready PORT`. Knows nothing of the agent.
'use strict';
const fs = require('node:fs');
const http2 = require('node:http2');
const { setTimeout: sleep } = require('node:timers/promises');

async function answer(stream, headers) {
  const begun = process.hrtime.bigint();
  const target = new URL(headers[':path'], 'http://workload');
  const [, , , status, framing, bytes] = target.pathname.split('/');
  const size = Number(bytes);
  const pieces = Number(target.searchParams.get('p') ?? 1);
  for await (const _ of stream);
  const delay = Number(target.searchParams.get('d') ?? 0);
  if (delay) await sleep(delay / 1000);
  const method = headers[':method'];
  const bodiless = method === 'HEAD' || status === '204' || status === '304';
  const fields = { ':status': Number(status), 'x-handler-ns': String(process.hrtime.bigint() - begun) };
  if (framing === 'length' && status !== '204' && status !== '304') fields['content-length'] = size;
  if (bodiless) return stream.respond(fields, { endStream: true });
  const trailers = framing === 'chunked';
  stream.respond(fields, { waitForTrailers: trailers });
  if (trailers) stream.on('wantTrailers', () => stream.sendTrailers({ 'x-digest': '0' }));
  let sent = 0;
  for (let piece = 1; piece <= pieces; piece++) {
    const end = Math.floor((size * piece) / pieces);
    stream.write(Buffer.alloc(end - sent, 'b'));
    sent = end;
    if (piece < pieces) await sleep(Number(target.searchParams.get('g') ?? 0) / 1000);
  }
  stream.end();
}

// A request that its client gave up ends its stream, not the server.
function serve(stream, headers) {
  answer(stream, headers).catch((error) => {
    console.error(headers[':method'], headers[':path'], error);
    stream.destroy();
  });
}

const { TLS_CERTIFICATE: certificate, TLS_KEY: key } = process.env;
const settings = { maxConcurrentStreams: 4096 };
const read = (name) => fs.readFileSync(name);
const server = certificate
  ? http2.createSecureServer({ settings, cert: read(certificate), key: read(key) })
  : http2.createServer({ settings });
server.on('stream', serve);
server.listen({ host: '127.0.0.1', port: 0, backlog: 1024 }, () => console.log('ready', server.address().port));
