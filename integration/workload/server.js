// Workload server on Node's http, or https with TLS_CERTIFICATE and TLS_KEY. In: requests of the protocol in integration/src/shape.rs. Out: answers of
// exactly that shape, with the handling time in `x-handler-ns`. Prints `ready PORT`. Knows nothing of the agent.
'use strict';
const fs = require('node:fs');
const http = require('node:http');
const https = require('node:https');
const { setTimeout: sleep } = require('node:timers/promises');

async function answer(request, response) {
  const begun = process.hrtime.bigint();
  const target = new URL(request.url, 'http://workload');
  const [, , , status, framing, bytes] = target.pathname.split('/');
  const size = Number(bytes);
  const pieces = Number(target.searchParams.get('p') ?? 1);
  for await (const _ of request);
  const delay = Number(target.searchParams.get('d') ?? 0);
  if (delay) await sleep(delay / 1000);
  const bodiless = request.method === 'HEAD' || status === '204' || status === '304';
  const headers = {};
  if (framing === 'length' && status !== '204' && status !== '304') headers['content-length'] = size;
  if (framing === 'chunked') headers['transfer-encoding'] = 'chunked';
  headers['x-handler-ns'] = String(process.hrtime.bigint() - begun);
  response.writeHead(Number(status), headers);
  let sent = 0;
  for (let piece = 1; !bodiless && piece <= pieces; piece++) {
    const end = Math.floor((size * piece) / pieces);
    response.write(Buffer.alloc(end - sent, 'b'));
    sent = end;
    if (piece < pieces) await sleep(Number(target.searchParams.get('g') ?? 0) / 1000);
  }
  response.end();
}

// A request that its client gave up ends its connection, not the server.
function serve(request, response) {
  answer(request, response).catch((error) => {
    console.error(request.method, request.url, error);
    response.destroy();
  });
}

const { TLS_CERTIFICATE: certificate, TLS_KEY: key } = process.env;
const options = { keepAliveTimeout: 120000 };
const server = certificate
  ? https.createServer({ ...options, cert: fs.readFileSync(certificate), key: fs.readFileSync(key) }, serve)
  : http.createServer(options, serve);
server.listen({ host: '127.0.0.1', port: 0, backlog: 1024 }, () => console.log('ready', server.address().port));
