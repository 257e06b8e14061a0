// What the programs of this directory share: the environment, the contract, the control server and the output.
// Each program writes its scenarios with the calls of its own library.
import { readFileSync } from "node:fs";

const need = (name) => {
  const value = process.env[name];
  if (!value) throw new Error(`${name} is not set`);
  return value;
};

export const url = need("GAPLESS_RPC_URL");
export const from = need("GAPLESS_FROM");
const controlUrl = need("CONTROL_URL");
export const headers = process.env.GAPLESS_API_KEY ? { authorization: `Bearer ${process.env.GAPLESS_API_KEY}` } : {};

const artifact = (name) => JSON.parse(readFileSync(new URL(`../contract/${name}.json`, import.meta.url), "utf8"));
export const Counter = artifact("Counter");
export const Relay = artifact("Relay");

export const versionOf = (name) =>
  JSON.parse(readFileSync(new URL(`node_modules/${name}/package.json`, import.meta.url), "utf8")).version;

export const CONCURRENT = 50;
export const POLL_MS = 200;
// How long a program waits for one receipt.
export const WAIT_MS = 60_000;
const SCENARIO_MS = 180_000;

// One line for an error: libraries write several, and keep the message of the endpoint in an inner error.
function firstLine(error) {
  const messages = [];
  for (let inner = error; inner && messages.length < 4; inner = inner.cause ?? inner.error ?? inner.info?.error) {
    messages.push(String(inner.shortMessage ?? inner.message ?? inner).split("\n")[0]);
  }
  return [...new Set(messages)].join(": ");
}

export function check(condition, message) {
  if (!condition) throw new Error(message);
}

export function equal(found, wanted, what) {
  check(found === wanted, `${what} is ${found}, not ${wanted}`);
}

// Addresses with and without checksum are the same.
export function sameAddress(found, wanted, what) {
  equal(String(found).toLowerCase(), String(wanted).toLowerCase(), what);
}

export function allDiffer(values, what) {
  equal(new Set(values).size, values.length, `the number of different ${what}`);
}

// The error of a promise that must fail.
export async function errorOf(promise) {
  let value;
  try {
    value = await promise;
  } catch (error) {
    return error;
  }
  throw new Error(`there was no error, but ${value}`);
}

export const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

// Repeats a read until it returns something. An error is repeated too: the endpoint may be restarting.
export async function repeatRead(read, what) {
  const end = Date.now() + WAIT_MS;
  let last = "null";
  for (;;) {
    try {
      const value = await read();
      if (value) return value;
    } catch (error) {
      last = firstLine(error);
    }
    check(Date.now() < end, `no ${what} in ${WAIT_MS} ms; the last answer was ${last}`);
    await sleep(POLL_MS);
  }
}

async function control(path) {
  const answer = await fetch(controlUrl + path, { method: "POST" });
  if (!answer.ok) throw new Error(`control server: ${path} has status ${answer.status}: ${await answer.text()}`);
}
export const restart = () => control("/restart");
export const hold = () => control("/hold");
export const mine = () => control("/mine");
export const replace = (hash) => control(`/replace/${hash}`);

// Mining resumes, whatever happens inside.
export async function whileHeld(work) {
  await hold();
  try {
    return await work();
  } finally {
    await mine();
  }
}

export function note(text) {
  console.error(`note: ${text}`);
}

function within(ms, promise) {
  let timer;
  const expired = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`not finished after ${ms} ms`)), ms);
  });
  return Promise.race([promise, expired]).finally(() => clearTimeout(timer));
}

// Runs the scenarios, an object of functions, in their order and ends the process.
export async function run(library, version, scenarios) {
  console.log(`version ${library} ${version}`);
  let failed = false;
  for (const [name, scenario] of Object.entries(scenarios)) {
    try {
      await within(SCENARIO_MS, scenario());
      console.log(`ok ${name}`);
    } catch (error) {
      failed = true;
      console.log(`FAILED ${name}: ${firstLine(error)}`);
      if (process.env.GAPLESS_TRACE) console.error(error);
    }
  }
  // Libraries keep timers and connections open.
  process.exit(failed ? 1 : 0);
}
