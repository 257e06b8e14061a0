// Hardhat Ignition deployments: `hardhat run --no-compile ignition.mjs`.
//
// Ignition sends nonce, gas limit and fees of its own. The nonce is the pending eth_getTransactionCount, which must have
// grown by one after each send, so nobody else may send from the submitter during a deployment. It asks
// eth_getTransactionByHash until the receipt is there and gives up when the transaction is not found. After
// timeBeforeBumpingFees it would send the same nonce again with higher fees: Gapless replaces transactions itself.
import { existsSync, readFileSync } from "node:fs";
import path from "node:path";
import { buildModule } from "@nomicfoundation/ignition-core";
import hre from "hardhat";
import * as t from "../suite.mjs";

const CALLS = 10;
const config = { requiredConfirmations: 1, blockPollingInterval: t.POLL_MS, disableFeeBumping: true };

const deploy = (module, deploymentId) => hre.ignition.deploy(module, { deploymentId, config, defaultSender: t.from });

// The hash of the first transaction that the deployment sent, from its journal.
function firstHash(deploymentId) {
  const journal = path.join(hre.config.paths.ignition, "deployments", deploymentId, "journal.jsonl");
  return t.repeatRead(() => {
    const lines = existsSync(journal) ? readFileSync(journal, "utf8").split("\n").filter(Boolean) : [];
    const sent = lines.map((line) => JSON.parse(line)).find(({ type }) => type === "TRANSACTION_SEND");
    return sent?.transaction.hash;
  }, "TRANSACTION_SEND in the journal");
}

// Module ids are not deployment ids: each scenario has one of each.
const twoContracts = (id) =>
  buildModule(id, (m) => {
    const counter = m.contract("Counter", t.Counter);
    const relay = m.contract("Relay", t.Relay, [counter]);
    m.call(relay, "increment");
    return { counter, relay };
  });

async function checkTwoContracts({ counter, relay }) {
  for (const [contract, artifact] of [[counter, t.Counter], [relay, t.Relay]]) {
    const code = await hre.ethers.provider.getCode(contract);
    // An immutable is zero in the artifact and has its value on chain.
    t.equal(code.length, artifact.deployedBytecode.length, "the length of the code");
  }
  t.sameAddress(await relay.counter(), await counter.getAddress(), "Relay.counter");
  t.equal(await counter.count(), 1n, "the counter");
}

// A module of calls to the counter of `deploy`.
let counter;
const callsOf = async (id, calls) => {
  const address = await counter.getAddress();
  return buildModule(id, (m) => {
    const contract = m.contractAt("Counter", t.Counter, address);
    calls(m, contract);
    return { contract };
  });
};

await t.run("hardhat-ignition", t.versionOf("@nomicfoundation/hardhat-ignition"), {
  async deploy() {
    const deployed = await deploy(twoContracts("Deploy"), "deploy");
    await checkTwoContracts(deployed);
    ({ counter } = deployed);
  },

  // Calls that do not depend on each other are one batch: sent one after the other, without waiting for receipts.
  async concurrent() {
    const before = await counter.count();
    const calls = (m, contract) => {
      for (let i = 0; i < CALLS; i++) m.call(contract, "increment", [], { id: `increment${i}` });
    };
    await deploy(await callsOf("Concurrent", calls), "concurrent");
    t.equal(await counter.count(), before + BigInt(CALLS), "the counter");
  },

  // The deployment may fail because a read failed during the restart. The same deployment is then started again, which
  // is Ignition's way to continue: it finds the hash in its journal and does not send again.
  async restart() {
    const module = twoContracts("Restart");
    let deployed;
    await t.whileHeld(async () => {
      deployed = deploy(module, "restart");
      // It is awaited only after the restart.
      deployed.catch(() => {});
      await firstHash("restart");
      await t.restart();
    });
    const contracts = await deployed.catch((error) => {
      t.note(`the deployment failed during the restart: ${error.message.split("\n")[0]}`);
      return deploy(module, "restart");
    });
    await checkTwoContracts(contracts);
  },

  async replacement() {
    let deployed;
    await t.whileHeld(async () => {
      deployed = deploy(twoContracts("Replacement"), "replacement");
      deployed.catch(() => {});
      await t.replace(await firstHash("replacement"));
    });
    await checkTwoContracts(await deployed);
  },

  async revert() {
    const before = await counter.count();
    const module = await callsOf("Revert", (m, contract) => m.call(contract, "fail"));
    const error = await t.errorOf(deploy(module, "revert"));
    t.check(/Refused/.test(error.message), `the error is ${error.message}`);
    t.equal(await counter.count(), before, "the counter");
  },
});
