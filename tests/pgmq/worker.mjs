// A worker of pgmq-js: node worker.mjs QUEUE. Runs until it is killed, and records as
// tests/working/history.py does. Given messages as JSON, it sends these and ends.

import { openSync, writeSync } from 'node:fs';
import { setTimeout as sleep } from 'node:timers/promises';
import pg from 'pg';
import { Pgmq } from 'pgmq-js';

// Seconds that a lease lasts, and that it still has to last when a message's work starts.
const LEASE = 8;
const RESERVE = 5;

const [queue, messages] = process.argv.slice(2);
const { msg } = await Pgmq.new({ ssl: false }, { skipExtensionCreation: true });

if (messages) {
  await msg.sendBatch(queue, JSON.parse(messages));
  process.exit();
}

const file = openSync(`${process.env.WORKING_HISTORY}/${process.pid}.jsonl`, 'a');
let n = 0;
const record = (event, op) => {
  const at = Number(process.hrtime.bigint()) / 1e9;
  writeSync(file, JSON.stringify({ n: n++, at, event, op }) + '\n');
};

const effects = new pg.Client();
await effects.connect();
for (;;) {
  for (const { msgId, message, vt } of await msg.readBatch(queue, LEASE, 10)) {
    if (vt < Date.now() + RESERVE * 1000) break;
    record('deliver', message.op);
    await effects.query("INSERT INTO orders_app_order (number, note) VALUES ($1, 'js')", [message.op]);
    record('effect', message.op);
    if (await msg.archive(queue, msgId)) record('acked', message.op);
  }
  await sleep(20);
}
