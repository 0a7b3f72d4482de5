// As hot_loop.py, on Node's one loop: a request's first turn is in the callback that has read it, the others behind
// `await` of a timer. Prints `ready PORT`.
'use strict';

const http = require('node:http');
const { setTimeout: sleep } = require('node:timers/promises');

const ROUNDS = 400_000;

function burn_a() {
  let total = 0;
  for (let nth = 0; nth < ROUNDS; nth++) total = (total + Math.imul(nth, nth)) | 0;
  return total;
}

function burn_b() {
  let total = 1;
  for (let nth = 0; nth < ROUNDS; nth++) total ^= (nth + total) | 0;
  return total;
}

const server = http.createServer(async (request, response) => {
  const burn = request.url === '/a' ? burn_a : burn_b;
  for (let turn = 0; turn < 4; turn++) {
    burn();
    await sleep(Math.random() * 4);
  }
  response.end('ok');
});

server.listen(0, '127.0.0.1', () => console.log('ready', server.address().port));
