// Compiles Counter.sol to Counter.json and Relay.json, in the format of Hardhat's artifacts: `npm ci && npm run build`.
import { readFileSync, writeFileSync } from "node:fs";
import solc from "solc";

const sourceName = "Counter.sol";
const here = (name) => new URL(name, import.meta.url);
const input = {
  language: "Solidity",
  sources: { [sourceName]: { content: readFileSync(here(sourceName), "utf8") } },
  settings: {
    // Runs on every chain, also on those without PUSH0.
    evmVersion: "paris",
    optimizer: { enabled: true, runs: 200 },
    outputSelection: { "*": { "*": ["abi", "evm.bytecode", "evm.deployedBytecode"] } },
  },
};

const output = JSON.parse(solc.compile(JSON.stringify(input)));
if (output.errors?.length) {
  console.error(output.errors.map((error) => error.formattedMessage).join("\n"));
  process.exit(1);
}
for (const [contractName, { abi, evm }] of Object.entries(output.contracts[sourceName])) {
  const artifact = {
    _format: "hh-sol-artifact-1",
    contractName,
    sourceName,
    abi,
    bytecode: `0x${evm.bytecode.object}`,
    deployedBytecode: `0x${evm.deployedBytecode.object}`,
    linkReferences: evm.bytecode.linkReferences,
    deployedLinkReferences: evm.deployedBytecode.linkReferences,
  };
  writeFileSync(here(`${contractName}.json`), `${JSON.stringify(artifact, null, 2)}\n`);
  console.log(`${contractName}.json, solc ${solc.version()}`);
}
