// viem 2 with a JSON-RPC account, two ways to send: the functions of a wallet client, and eth_sendTransaction as a raw
// request (the scenarios with `raw-`). The reads and waitForTransactionReceipt are the same.
import {
  BaseError,
  createPublicClient,
  createWalletClient,
  defineChain,
  encodeFunctionData,
  getAddress,
  http,
  parseEventLogs,
} from "viem";
import * as t from "./suite.mjs";

const { abi, bytecode, deployedBytecode } = t.Counter;
const transport = http(t.url, { fetchOptions: { headers: t.headers } });

let reader;
let wallet;

// The chain is not one of viem's list.
async function connect() {
  const id = await createPublicClient({ transport }).getChainId();
  const chain = defineChain({
    id,
    name: "test chain",
    nativeCurrency: { name: "Ether", symbol: "ETH", decimals: 18 },
    rpcUrls: { default: { http: [t.url] } },
  });
  const common = { chain, transport, pollingInterval: t.POLL_MS, cacheTime: 0 };
  reader = createPublicClient(common);
  wallet = createWalletClient({ ...common, account: getAddress(t.from) });
  const accounts = await wallet.getAddresses();
  t.check(accounts.includes(getAddress(t.from)), `eth_accounts has ${accounts}, not ${t.from}`);
}

const byWallet = {
  deploy: () => wallet.deployContract({ abi, bytecode }),
  call: (address, functionName) => wallet.writeContract({ address, abi, functionName }),
};

const sendRaw = (fields) => wallet.request({ method: "eth_sendTransaction", params: [{ from: t.from, ...fields }] });
const byRequest = {
  deploy: () => sendRaw({ data: bytecode }),
  call: (address, functionName) => sendRaw({ to: address, data: encodeFunctionData({ abi, functionName }) }),
};

async function receiptOf(hash) {
  const receipt = await reader.waitForTransactionReceipt({ hash, timeout: t.WAIT_MS });
  t.equal(receipt.status, "success", "the status");
  return receipt;
}

function scenarios(send, prefix) {
  let address;
  const increment = () => send.call(address, "increment");
  const count = () => reader.readContract({ address, abi, functionName: "count" });
  const countAfter = async (wanted) => t.equal(await count(), wanted, "the counter");

  const all = {
    async deploy() {
      await connect();
      const receipt = await receiptOf(await send.deploy());
      address = receipt.contractAddress;
      t.equal(await reader.getCode({ address }), deployedBytecode, "the code");
    },

    async call() {
      const receipt = await receiptOf(await increment());
      const events = parseEventLogs({ abi, logs: receipt.logs });
      t.equal(events.length, 1, "the number of events");
      t.equal(events[0].eventName, "Incremented", "the event");
      t.sameAddress(events[0].args.by, t.from, "Incremented.by");
      t.equal(events[0].args.count, 1n, "Incremented.count");
      await countAfter(1n);
    },

    async concurrent() {
      const before = await count();
      const hashes = await Promise.all(Array.from({ length: t.CONCURRENT }, increment));
      t.allDiffer(hashes, "hashes");
      await Promise.all(hashes.map(receiptOf));
      await countAfter(before + BigInt(t.CONCURRENT));
    },

    async restart() {
      const before = await count();
      const hash = await increment();
      await t.restart();
      await receiptOf(hash);
      await receiptOf(await increment());
      await countAfter(before + 2n);
    },

    // waitForTransactionReceipt returns the receipt of a replacement, whether the endpoint or viem finds it.
    async replacement() {
      const before = await count();
      const hash = await t.whileHeld(async () => {
        const hash = await increment();
        await t.replace(hash);
        return hash;
      });
      const receipt = await receiptOf(hash);
      t.check(receipt.transactionHash !== hash, "the transaction was not replaced");
      const direct = await reader.getTransactionReceipt({ hash });
      t.equal(direct.transactionHash, receipt.transactionHash, "the hash of the receipt by the first hash");
      await countAfter(before + 1n);
    },

    async revert() {
      const before = await count();
      const error = await t.errorOf(send.call(address, "fail"));
      t.check(error instanceof BaseError, `the error is ${error}`);
      await countAfter(before);
    },
  };
  return Object.fromEntries(Object.entries(all).map(([name, scenario]) => [prefix + name, scenario]));
}

await t.run("viem", t.versionOf("viem"), { ...scenarios(byWallet, ""), ...scenarios(byRequest, "raw-") });
