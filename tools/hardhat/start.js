// Hardhat, from whatever directory it is started: it looks for its configuration and for itself in the current one.
process.chdir(__dirname);
require("hardhat/internal/cli/bootstrap");
