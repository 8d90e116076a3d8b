// Does what note_delay in benchmarks/notes.py does. Python has the same monotonic clock.
const { appendFileSync } = require("fs");

module.exports = async ({ sent }) => {
  const late = Number(process.hrtime.bigint()) / 1e9 - sent;
  appendFileSync(process.env.BENCHMARK_NOTES, `[${sent}, ${late}]\n`);
};
