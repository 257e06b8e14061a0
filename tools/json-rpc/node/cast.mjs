// Foundry's `cast send --unlocked`, one process for each transaction, and `cast receipt`.
//
// It sends gas limit, fees, chain id, type and a nonce: the latest eth_getTransactionCount. The API key is in the URL,
// because cast sends the headers of --rpc-headers with most of its requests, but not with all of them.
import { execFile } from "node:child_process";
import { promisify } from "node:util";
import { fileURLToPath } from "node:url";
import * as t from "./suite.mjs";

const PROCESSES = 10;
// The program itself: the exit code of node_modules/.bin/cast is always 0.
const platform = `${process.platform}-${process.arch === "x64" ? "amd64" : process.arch}`;
const cast = fileURLToPath(new URL(`node_modules/@foundry-rs/cast-${platform}/bin/cast`, import.meta.url));
const { GAPLESS_API_KEY: key } = process.env;
const env = { ...process.env, ETH_RPC_URL: key ? `${t.url}/${key}` : t.url, NO_COLOR: "1" };

async function run(...args) {
  try {
    const { stdout } = await promisify(execFile)(cast, args, { env, timeout: t.WAIT_MS });
    return stdout.trim();
  } catch (error) {
    throw new Error(error.stderr?.trim().split("\n").join(" ") || error.message);
  }
}

// Waits for the receipt, or with --async only for the hash.
const send = (...args) => run("send", "--unlocked", "--from", t.from, "--json", "--poll-interval", "1", ...args);

function succeeded(output) {
  const receipt = JSON.parse(output);
  t.equal(receipt.status, "0x1", "the status");
  return receipt;
}

// `cast receipt` waits until the transaction has one confirmation.
const receiptOf = async (hash) => succeeded(await run("receipt", "--json", hash));

let address;
const increment = (...args) => send(...args, address, "increment()");
const count = async () => BigInt(await run("call", address, "count()"));
const countAfter = async (wanted) => t.equal(await count(), wanted, "the counter");

// --async prints the hash, with --json as a JSON string.
const incrementAsync = async () => (await increment("--async")).replaceAll('"', "");

await t.run("cast", t.versionOf("@foundry-rs/cast"), {
  async deploy() {
    const accounts = JSON.parse(await run("rpc", "eth_accounts"));
    const listed = accounts.some((account) => account.toLowerCase() === t.from.toLowerCase());
    t.check(listed, `eth_accounts has ${accounts}, not ${t.from}`);
    const receipt = succeeded(await send("--create", t.Counter.bytecode));
    address = receipt.contractAddress;
    t.equal(await run("code", address), t.Counter.deployedBytecode, "the code");
  },

  async call() {
    const { logs } = succeeded(await increment());
    t.equal(logs.length, 1, "the number of logs");
    t.equal(logs[0].topics[0], await run("sig-event", "Incremented(address,uint256)"), "the event");
    t.equal(BigInt(logs[0].topics[1]), BigInt(t.from), "Incremented.by");
    t.equal(BigInt(logs[0].data), 1n, "Incremented.count");
    await countAfter(1n);
  },

  // Several processes may send the same nonce. Each of them gets a receipt or an error about the nonce, and each
  // transaction that was reported has its effect once.
  async concurrent() {
    const before = await count();
    const results = await Promise.allSettled(Array.from({ length: PROCESSES }, () => increment()));
    const refused = results.filter(({ status }) => status === "rejected").map(({ reason }) => reason.message);
    for (const message of refused) t.check(/nonce|already|replacement/i.test(message), `the error is ${message}`);
    const receipts = results.filter(({ status }) => status === "fulfilled").map(({ value }) => succeeded(value));
    const hashes = new Set(receipts.map((receipt) => receipt.transactionHash));
    t.check(hashes.size > 0, "no transaction was sent");
    await countAfter(before + BigInt(hashes.size));
    t.note(`${PROCESSES} processes: ${hashes.size} transactions, ${refused.length} refused`);
    if (refused.length) t.note(`refused: ${refused[0]}`);
  },

  async restart() {
    const before = await count();
    const hash = await incrementAsync();
    await t.restart();
    await receiptOf(hash);
    succeeded(await increment());
    await countAfter(before + 2n);
  },

  async replacement() {
    const before = await count();
    const hash = await t.whileHeld(async () => {
      const hash = await incrementAsync();
      await t.replace(hash);
      return hash;
    });
    const receipt = await receiptOf(hash);
    t.check(receipt.transactionHash !== hash, "the transaction was not replaced");
    await countAfter(before + 1n);
  },

  async revert() {
    const before = await count();
    const error = await t.errorOf(send(address, "fail()"));
    t.check(/revert|0x590a5151/i.test(error.message), `the error is ${error.message}`);
    await countAfter(before);
  },
});
