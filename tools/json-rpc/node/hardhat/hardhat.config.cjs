// The network is the endpoint; `accounts: "remote"` is Hardhat's default: the endpoint signs.
require("@nomicfoundation/hardhat-ethers");
require("@nomicfoundation/hardhat-ignition-ethers");

const { GAPLESS_RPC_URL, GAPLESS_API_KEY, GAPLESS_WORK } = process.env;
if (!GAPLESS_WORK) throw new Error("GAPLESS_WORK is not set; tools/json-rpc/run sets it to an empty directory");

module.exports = {
  // Nothing is compiled, but Hardhat requires a version.
  solidity: "0.8.28",
  defaultNetwork: "gapless",
  networks: {
    gapless: {
      url: GAPLESS_RPC_URL,
      accounts: "remote",
      httpHeaders: GAPLESS_API_KEY ? { authorization: `Bearer ${GAPLESS_API_KEY}` } : {},
    },
  },
  // Ignition writes its journal there, Hardhat its cache.
  paths: {
    artifacts: `${GAPLESS_WORK}/artifacts`,
    cache: `${GAPLESS_WORK}/cache`,
    ignition: `${GAPLESS_WORK}/ignition`,
  },
};
