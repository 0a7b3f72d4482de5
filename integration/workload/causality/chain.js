// A service that passes on what it is asked: `chain.js NEXT_PORT`. Each `GET PATH` makes one `GET PATH` to the port and
// is answered when that is. Passes no header on. Prints `ready PORT`.
'use strict';

const http = require('node:http');

const port = Number(process.argv[2]);

const server = http.createServer((request, response) => {
  http.get({ host: '127.0.0.1', port, path: request.url }, (answer) => {
    answer.resume();
    answer.on('end', () => response.end('ok'));
  });
});

server.listen(0, '127.0.0.1', 1024, () => console.log('ready', server.address().port));
