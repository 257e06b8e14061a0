// ethers 6: JsonRpcProvider and JsonRpcSigner.
//
// It sends several calls as one JSON-RPC batch, and after eth_sendTransaction it asks eth_getTransactionByHash until it
// gets the transaction. Both stay at their defaults here.
import { Contract, ContractFactory, FetchRequest, JsonRpcProvider, isError, version } from "ethers";
import * as t from "./suite.mjs";

const request = new FetchRequest(t.url);
for (const [name, value] of Object.entries(t.headers)) request.setHeader(name, value);
const provider = new JsonRpcProvider(request, undefined, {
  pollingInterval: t.POLL_MS,
  // Without it two reads of the counter within 250 ms have one answer.
  cacheTimeout: -1,
});

let counter;

const receiptOf = async (transaction) => {
  const receipt = await transaction.wait(1, t.WAIT_MS);
  t.equal(receipt.status, 1, "the status");
  return receipt;
};

const countAfter = async (wanted) => t.equal(await counter.count(), wanted, "the counter");

await t.run("ethers", version, {
  async deploy() {
    // Reads eth_accounts and fails if the submitter is not in it.
    const signer = await provider.getSigner(t.from);
    const deployed = await new ContractFactory(t.Counter.abi, t.Counter.bytecode, signer).deploy();
    await deployed.waitForDeployment();
    const receipt = await receiptOf(deployed.deploymentTransaction());
    const address = await deployed.getAddress();
    t.sameAddress(receipt.contractAddress, address, "contractAddress");
    t.equal(await provider.getCode(address), t.Counter.deployedBytecode, "the code");
    counter = new Contract(address, t.Counter.abi, signer);
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

  // Sent with the signer: wait() then looks for the receipt and, at each new block, for another transaction with the same
  // nonce. Whichever it finds first decides: it returns the receipt or throws TRANSACTION_REPLACED, which has the receipt
  // too. wait() of what a contract object sent looks for the receipt only.
  async replacement() {
    const before = await counter.count();
    const call = await counter.increment.populateTransaction();
    const sent = await t.whileHeld(async () => {
      const sent = await counter.runner.sendTransaction(call);
      await t.replace(sent.hash);
      return sent;
    });
    const receipt = await receiptOf(sent).catch((error) => {
      if (!isError(error, "TRANSACTION_REPLACED") || error.reason !== "repriced") throw error;
      t.note("wait() threw TRANSACTION_REPLACED");
      return error.receipt;
    });
    t.equal(receipt.status, 1, "the status");
    t.check(receipt.hash !== sent.hash, "the transaction was not replaced");
    await countAfter(before + 1n);
    const direct = await provider.waitForTransaction(sent.hash, 1, t.WAIT_MS);
    t.equal(direct.hash, receipt.hash, "the hash of the receipt by the first hash");
  },

  async revert() {
    const before = await counter.count();
    const error = await t.errorOf(counter.fail());
    t.check(isError(error, "CALL_EXCEPTION"), `the error is ${error}`);
    t.equal(error.revert?.name ?? counter.interface.parseError(error.data)?.name, "Refused", "the custom error");
    await countAfter(before);
  },
});
