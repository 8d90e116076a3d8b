// Does what client.py does, with the statements of graphile-worker's own client and worker.
const { readFileSync, writeFileSync } = require("fs");
const { join, dirname } = require("path");

const worker = dirname(require.resolve("graphile-worker"));
const { processSharedOptions, makeEnhancedWithPgClient } = require(join(worker, "lib.js"));
const { batchGetJobs } = require(join(worker, "sql", "getJobs.js"));
const { batchCompleteJobs } = require(join(worker, "sql", "completeJobs.js"));
const { makeAddJob } = require(join(worker, "helpers.js"));
const { Client } = require("pg");

const QUEUE = "load";
const WARM_UP = 6;
const PAUSE = 1;
const tasks = { [QUEUE]: () => {} };
const now = () => Number(process.hrtime.bigint()) / 1e9;
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

async function connect(shared, bodies, place) {
  const client = new Client();
  await client.connect();
  const withPgClient = makeEnhancedWithPgClient((callback) => callback(client));
  const addJob = makeAddJob(shared, withPgClient);
  let next = place;
  return async () => {
    await addJob(QUEUE, bodies[next++ % bodies.length]);
    let empty = 0;
    for (;;) {
      const jobs = await batchGetJobs(shared, withPgClient, tasks, `load-${place}`, null, 1);
      if (jobs.length) {
        await batchCompleteJobs(shared, withPgClient, `load-${place}`, jobs);
        return empty;
      }
      empty += 1;
      await sleep(PAUSE);
    }
  };
}

async function follow(turn, due, start, seconds) {
  const turns = [];
  for (const moment of due) {
    const wait = start + moment - now();
    // A timer of Node.js has whole milliseconds, and may be late by one.
    if (wait > 0) await sleep(1000 * wait);
    const began = now() - start;
    if (began > seconds) break;
    const empty = await turn();
    turns.push([moment, began, now() - start, empty]);
  }
  return turns;
}

async function main(path) {
  const plan = JSON.parse(readFileSync(path, "utf8"));
  const bodies = JSON.parse(readFileSync(plan.bodies, "utf8"));
  const shared = processSharedOptions({});
  const turns = [];
  for (let place = 0; place < plan.due.length; place++) {
    turns.push(await connect(shared, bodies, place));
  }
  await Promise.all(
    turns.map(async (turn) => {
      for (let n = 0; n < WARM_UP; n++) await turn();
    })
  );
  process.stdout.write("ready\n");
  const start = await new Promise((resolve) =>
    process.stdin.once("data", (text) => resolve(Number(text)))
  );
  const found = await Promise.all(
    turns.map((turn, place) => follow(turn, plan.due[place], start, plan.seconds))
  );
  writeFileSync(plan.turns, JSON.stringify(found));
  process.exit(0);
}

main(process.argv[2]).catch((error) => {
  console.error(error);
  process.exit(1);
});
