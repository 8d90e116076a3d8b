module.exports = () => new Promise((resolve) => setTimeout(resolve, 10));
