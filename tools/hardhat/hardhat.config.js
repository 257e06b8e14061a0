// One chain of a test. What it should be like is in the environment, as `networks.hardhat` of Hardhat's configuration.
module.exports = {
  // Nothing is compiled; Hardhat wants to hear a version all the same.
  solidity: "0.8.26",
  networks: { hardhat: JSON.parse(process.env.GAPLESS_HARDHAT_NETWORK ?? "{}") },
};
