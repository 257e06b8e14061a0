// A Hardhat script: `hardhat run --no-compile script.mjs`, with the ethers plugin.
//
// The plugin's provider is not ethers' own: no batches, and wait() has the same rules as in ethers.mjs.
import hre from "hardhat";
import * as t from "../suite.mjs";

const { ethers } = hre;

let signer;
let counter;

const receiptOf = async (transaction) => {
  const receipt = await transaction.wait(1, t.WAIT_MS);
  t.equal(receipt.status, 1, "the status");
  return receipt;
};

const countAfter = async (wanted) => t.equal(await counter.count(), wanted, "the counter");

await t.run("hardhat", t.versionOf("hardhat"), {
  async deploy() {
    const signers = await ethers.getSigners();
    signer = signers.find(({ address }) => address.toLowerCase() === t.from.toLowerCase());
    t.check(signer, `getSigners() has ${signers.map(({ address }) => address)}, not ${t.from}`);
    const factory = await ethers.getContractFactoryFromArtifact(t.Counter, signer);
    counter = await factory.deploy();
    await counter.waitForDeployment();
    const receipt = await receiptOf(counter.deploymentTransaction());
    const address = await counter.getAddress();
    t.sameAddress(receipt.contractAddress, address, "contractAddress");
    t.equal(await ethers.provider.getCode(address), t.Counter.deployedBytecode, "the code");
  },

  async call() {
    const receipt = await receiptOf(await counter.increment());
    t.equal(receipt.logs.length, 1, "the number of logs");
    const event = counter.interface.parseLog(receipt.logs[0]);
    t.equal(event.name, "Incremented", "the event");
    t.sameAddress(event.args.by, t.from, "Incremented.by");
    t.equal(event.args.count, 1n, "Incremented.count");
    await countAfter(1n);
  },

  async concurrent() {
    const before = await counter.count();
    const sent = await Promise.all(Array.from({ length: t.CONCURRENT }, () => counter.increment()));
    t.allDiffer(sent.map((transaction) => transaction.hash), "hashes");
    await Promise.all(sent.map(receiptOf));
    await countAfter(before + BigInt(t.CONCURRENT));
  },

  async restart() {
    const before = await counter.count();
    const sent = await counter.increment();
    await t.restart();
    await receiptOf(sent);
    await receiptOf(await counter.increment());
    await countAfter(before + 2n);
  },

  async replacement() {
    const before = await counter.count();
    const call = await counter.increment.populateTransaction();
    const sent = await t.whileHeld(async () => {
      const sent = await signer.sendTransaction(call);
      await t.replace(sent.hash);
      return sent;
    });
    const receipt = await receiptOf(sent).catch((error) => {
      if (error.code !== "TRANSACTION_REPLACED" || error.reason !== "repriced") throw error;
      t.note("wait() threw TRANSACTION_REPLACED");
      return error.receipt;
    });
    t.equal(receipt.status, 1, "the status");
    t.check(receipt.hash !== sent.hash, "the transaction was not replaced");
    await countAfter(before + 1n);
  },

  async revert() {
    const before = await counter.count();
    const error = await t.errorOf(counter.fail());
    t.check(/revert|Refused/i.test(error.message), `the error is ${error.message}`);
    await countAfter(before);
  },
});
