"""web3.py: Web3 with an HTTPProvider.

It sends the gas limit of eth_estimateGas, no fees and no nonce. After a connection error it repeats reads, but not
eth_sendTransaction. wait_for_transaction_receipt asks eth_getTransactionReceipt in a loop.
"""

import json
import os
import sys
import threading
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import web3
from web3 import Web3
from web3.exceptions import ContractCustomError

URL = os.environ["GAPLESS_RPC_URL"]
FROM = Web3.to_checksum_address(os.environ["GAPLESS_FROM"])
CONTROL_URL = os.environ["CONTROL_URL"]
KEY = os.environ.get("GAPLESS_API_KEY")

CONCURRENT = 50
POLL_S = 0.2
# How long the program waits for one receipt.
WAIT_S = 60
SCENARIO_S = 180

ARTIFACT = json.loads((Path(__file__).parent.parent / "contract" / "Counter.json").read_text())

headers = {"Content-Type": "application/json"}
if KEY:
    headers["Authorization"] = f"Bearer {KEY}"
w3 = Web3(Web3.HTTPProvider(URL, request_kwargs={"headers": headers, "timeout": 30}))

# The counter that `deploy` deploys.
counter = None


def equal(found, wanted, what):
    if found != wanted:
        raise AssertionError(f"{what} is {found}, not {wanted}")


def control(path):
    request = urllib.request.Request(CONTROL_URL + path, data=b"", method="POST")
    with urllib.request.urlopen(request, timeout=SCENARIO_S):
        pass


@contextmanager
def held():
    """Without mining, which resumes whatever happens inside."""
    control("/hold")
    try:
        yield
    finally:
        control("/mine")


def increment():
    return counter.functions.increment().transact({"from": FROM})


def receipt_of(tx_hash):
    receipt = w3.eth.wait_for_transaction_receipt(tx_hash, timeout=WAIT_S, poll_latency=POLL_S)
    equal(receipt.status, 1, "the status")
    return receipt


def count():
    return counter.functions.count().call()


def deploy():
    global counter
    if FROM not in w3.eth.accounts:
        raise AssertionError(f"eth_accounts has {w3.eth.accounts}, not {FROM}")
    factory = w3.eth.contract(abi=ARTIFACT["abi"], bytecode=ARTIFACT["bytecode"])
    receipt = receipt_of(factory.constructor().transact({"from": FROM}))
    equal(w3.eth.get_code(receipt.contractAddress).to_0x_hex(), ARTIFACT["deployedBytecode"], "the code")
    counter = w3.eth.contract(address=receipt.contractAddress, abi=ARTIFACT["abi"])


def call():
    receipt = receipt_of(increment())
    events = counter.events.Incremented().process_receipt(receipt)
    equal(len(events), 1, "the number of events")
    equal(events[0].args.by, FROM, "Incremented.by")
    equal(events[0].args["count"], 1, "Incremented.count")
    equal(count(), 1, "the counter")


def concurrent():
    before = count()
    with ThreadPoolExecutor(CONCURRENT) as pool:
        hashes = list(pool.map(lambda _: increment(), range(CONCURRENT)))
        equal(len(set(hashes)), CONCURRENT, "the number of different hashes")
        list(pool.map(receipt_of, hashes))
    equal(count(), before + CONCURRENT, "the counter")


def restart():
    before = count()
    tx_hash = increment()
    control("/restart")
    receipt_of(tx_hash)
    receipt_of(increment())
    equal(count(), before + 2, "the counter")


def replacement():
    before = count()
    with held():
        tx_hash = increment()
        control(f"/replace/{tx_hash.to_0x_hex()}")
    receipt = receipt_of(tx_hash)
    if receipt.transactionHash == tx_hash:
        raise AssertionError("the transaction was not replaced")
    equal(count(), before + 1, "the counter")


def revert():
    before = count()
    try:
        tx_hash = counter.functions.fail().transact({"from": FROM})
    except ContractCustomError as error:
        # The selector of Refused(uint256) and its argument.
        selector = Web3.keccak(text="Refused(uint256)")[:4].to_0x_hex()
        equal(error.data[:10], selector, "the custom error")
    else:
        raise AssertionError(f"there was no error, but {tx_hash.to_0x_hex()}")
    equal(count(), before, "the counter")


def run(scenario):
    """The error of a scenario, or None. A daemon thread, because a call of a library cannot be interrupted."""
    errors = []

    def work():
        try:
            scenario()
        except Exception as error:  # noqa: BLE001: every error is the result of the scenario
            errors.append(f"{type(error).__name__}: {error}".split("\n")[0])

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(SCENARIO_S)
    if thread.is_alive():
        return f"not finished after {SCENARIO_S} s"
    return errors[0] if errors else None


def main():
    print(f"version web3.py {web3.__version__}", flush=True)
    failed = False
    for scenario in (deploy, call, concurrent, restart, replacement, revert):
        error = run(scenario)
        failed = failed or error is not None
        name = scenario.__name__
        print(f"FAILED {name}: {error}" if error else f"ok {name}", flush=True)
    sys.stdout.flush()
    os._exit(1 if failed else 0)


main()
