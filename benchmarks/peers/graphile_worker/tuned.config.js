// The configuration of "Quick stats" on https://worker.graphile.org/docs/performance
const concurrentJobs = Number(process.env.BENCHMARK_CONCURRENCY);

module.exports = {
  worker: {
    taskDirectory: `${__dirname}/tasks`,
    concurrentJobs,
    maxPoolSize: concurrentJobs + 1,
    localQueue: { size: 500 },
    completeJobBatchDelay: 0,
    failJobBatchDelay: 0,
  },
};
