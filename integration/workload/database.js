// Clients of databases: `database.js LIBRARY PORT PLAN`, as database.py. Libraries: pg, pg-prepared, ioredis.
"use strict";

const fs = require("fs");

const [library, port, plan] = process.argv.slice(2);

const calls = JSON.parse(fs.readFileSync(plan));
const now = () => BigInt(Math.round((performance.timeOrigin + performance.now()) * 1e6));

function report(nth, code, started) {
  console.log(`{"nth": ${nth}, "code": "${code}", "started": ${started}, "ended": ${now()}}`);
}

async function postgres(isPrepared) {
  const { Client } = require("pg");
  const client = new Client({ host: "127.0.0.1", port: Number(port), user: "postgres", database: "postgres" });
  await client.connect();
  for (const [nth, call] of calls.entries()) {
    const started = now();
    let code = "";
    const name = isPrepared ? `statement-${nth}` : undefined;
    await client.query({ name, text: call.text, values: call.values }).catch((error) => (code = error.code));
    report(nth, code, started);
  }
  await client.end();
}

async function redis() {
  const Redis = require("ioredis");
  const client = new (Redis.default ?? Redis)({ port: Number(port), enableReadyCheck: false });
  await Promise.all(
    calls.map(async (call, nth) => {
      const started = now();
      let code = "";
      await client.call(...call.words).catch(() => (code = "error"));
      report(nth, code, started);
    }),
  );
  client.disconnect();
}

({ pg: () => postgres(false), "pg-prepared": () => postgres(true), ioredis: redis })[library]();
