// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.20;

/// Counts its calls, so that a test sees a lost or repeated transaction.
contract Counter {
    event Incremented(address indexed by, uint256 count);

    error Refused(uint256 count);

    uint256 public count;

    function increment() external {
        count += 1;
        emit Incremented(msg.sender, count);
    }

    /// Always reverts. It writes first, so that it is not a view and libraries send it as a transaction.
    function fail() external {
        count += 1;
        revert Refused(count);
    }
}

/// Is deployed with the address of a counter: a contract that depends on another.
contract Relay {
    Counter public immutable counter;

    constructor(Counter counter_) {
        counter = counter_;
    }

    function increment() external {
        counter.increment();
    }
}
