// Libraries repeat a call after some errors. Each of these programs sends once; the test counts what was stored. One line for
// each: `answered <name> <code of JSON-RPC>`.
import { JsonRpcProvider, FetchRequest } from "ethers";
import { createPublicClient, createWalletClient, http } from "viem";
import * as t from "./suite.mjs";

const to = "0x00000000000000000000000000000000000000e5";

// The code of the error that the endpoint answered with, wherever the library keeps it.
function codeOf(error) {
  for (let inner = error; inner; inner = inner.cause ?? inner.error ?? inner.info?.error) {
    if (typeof inner.code === "number") return inner.code;
  }
  return `none: ${error.message}`;
}

const transport = http(t.url, { fetchOptions: { headers: t.headers } });
const wallet = createWalletClient({ account: t.from, transport });
const client = createPublicClient({ transport });
const request = new FetchRequest(t.url);
Object.entries(t.headers).forEach(([name, value]) => request.setHeader(name, value));
const provider = new JsonRpcProvider(request);

const sends = {
  viem: () => wallet.sendTransaction({ chain: null, to, value: 1n }),
  "viem-request": () => client.request({ method: "eth_sendTransaction", params: [{ from: t.from, to, value: "0x1" }] }),
  ethers: async () => (await provider.getSigner(t.from)).sendTransaction({ to, value: 1n }),
};
for (const [name, send] of Object.entries(sends)) {
  console.log(`answered ${name} ${codeOf(await t.errorOf(send()))}`);
}
process.exit(0);
