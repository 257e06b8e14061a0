// web3.js 4: web3.eth.Contract. The promise of send() is fulfilled with the receipt; the hash comes earlier, as an event.
// It sends maxFeePerGas and maxPriorityFeePerGas of its own, no gas limit and no nonce.
import { Web3 } from "web3";
import * as t from "./suite.mjs";

const web3 = new Web3(new Web3.providers.HttpProvider(t.url, { providerOptions: { headers: t.headers } }));
web3.setConfig({ transactionPollingInterval: t.POLL_MS, transactionPollingTimeout: t.WAIT_MS });

// While it waits, it reads in the background too, and nobody can catch an error of that.
process.on("unhandledRejection", (error) => {
  if (error.type !== "system") throw error;
  console.error(`a read in the background failed: ${error.message}`);
});

let counter;

const count = () => counter.methods.count().call();
const countAfter = async (wanted) => t.equal(await count(), wanted, "the counter");
const increment = () => counter.methods.increment().send({ from: t.from });

// The hash as soon as the endpoint has answered. `sent` is the promise of send(); an error of it ends this one too.
function hashOf(sent) {
  return new Promise((resolve, reject) => {
    sent.once("transactionHash", resolve);
    sent.catch(reject);
  });
}

function succeeded(receipt) {
  t.equal(receipt.status, 1n, "the status");
  return receipt;
}

await t.run("web3", Web3.version, {
  async deploy() {
    const accounts = await web3.eth.getAccounts();
    const listed = accounts.some((account) => account.toLowerCase() === t.from.toLowerCase());
    t.check(listed, `eth_accounts has ${accounts}, not ${t.from}`);
    let receipt;
    counter = await new web3.eth.Contract(t.Counter.abi)
      .deploy({ data: t.Counter.bytecode })
      .send({ from: t.from })
      .once("receipt", (found) => (receipt = found));
    succeeded(receipt);
    t.sameAddress(receipt.contractAddress, counter.options.address, "contractAddress");
    t.equal(await web3.eth.getCode(counter.options.address), t.Counter.deployedBytecode, "the code");
  },

  async call() {
    const receipt = succeeded(await increment());
    const { by, count: counted } = receipt.events.Incremented.returnValues;
    t.sameAddress(by, t.from, "Incremented.by");
    t.equal(counted, 1n, "Incremented.count");
    await countAfter(1n);
  },

  async concurrent() {
    const before = await count();
    const receipts = await Promise.all(Array.from({ length: t.CONCURRENT }, increment));
    receipts.forEach(succeeded);
    t.allDiffer(receipts.map((receipt) => receipt.transactionHash), "hashes");
    await countAfter(before + BigInt(t.CONCURRENT));
  },

  // send() asks for the receipt all the time and fails if a read fails during the restart. Then the receipt is read again
  // by its hash; nothing is sent again.
  async restart() {
    const before = await count();
    const sent = increment();
    const hash = await hashOf(sent);
    await t.restart();
    const receipt = await sent.catch((error) => {
      t.note(`send() failed during the restart: ${error.message}`);
      return t.repeatRead(() => web3.eth.getTransactionReceipt(hash), "receipt");
    });
    succeeded(receipt);
    succeeded(await increment());
    await countAfter(before + 2n);
  },

  async replacement() {
    const before = await count();
    const { sent, hash } = await t.whileHeld(async () => {
      const sent = increment();
      const hash = await hashOf(sent);
      await t.replace(hash);
      return { sent, hash };
    });
    const receipt = succeeded(await sent);
    t.check(receipt.transactionHash !== hash, "the transaction was not replaced");
    await countAfter(before + 1n);
  },

  async revert() {
    const before = await count();
    const error = await t.errorOf(counter.methods.fail().send({ from: t.from }));
    t.equal(error.name, "ContractExecutionError", "the error");
    t.equal(error.cause?.errorName, "Refused", "the custom error");
    await countAfter(before);
  },
});
