// Nothing is set but where the tasks are.
module.exports = { worker: { taskDirectory: `${__dirname}/tasks` } };
