// As note_delay of benchmarks/notes.py: hrtime is the machine's monotonic clock, which Python has too.
const { appendFileSync } = require("fs");

module.exports = async ({ sent }) => {
  const late = Number(process.hrtime.bigint()) / 1e9 - sent;
  appendFileSync(process.env.BENCHMARK_NOTES, `[${sent}, ${late}]\n`);
};
