// go-ethereum: eth_sendTransaction with rpc.Client.CallContext. Receipts are read with ethclient and awaited with
// bind.WaitMined, which asks eth_getTransactionReceipt once a second whatever the error is.
//
// The calldata is in `input`, the newer name of `data`. ethclient and bind send signed transactions only
// (eth_sendRawTransaction), so they are not used to send.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net/http"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ethereum/go-ethereum"
	"github.com/ethereum/go-ethereum/accounts/abi"
	"github.com/ethereum/go-ethereum/accounts/abi/bind/v2"
	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/ethereum/go-ethereum/ethclient"
	"github.com/ethereum/go-ethereum/rpc"
)

const (
	concurrentSends = 50
	// How long the program waits for one receipt.
	waitTime     = time.Minute
	scenarioTime = 3 * time.Minute
)

type artifact struct {
	ABI              json.RawMessage `json:"abi"`
	Bytecode         hexutil.Bytes   `json:"bytecode"`
	DeployedBytecode hexutil.Bytes   `json:"deployedBytecode"`
}

type test struct {
	client     *rpc.Client
	reads      *ethclient.Client
	from       common.Address
	controlURL string
	contract   artifact
	abi        abi.ABI
	// The counter that `deploy` deploys.
	address common.Address
}

func (t *test) control(ctx context.Context, path string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, t.controlURL+path, nil)
	if err != nil {
		return err
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(answer.Body)
		return fmt.Errorf("control server: %s has status %d: %s", path, answer.StatusCode, text)
	}
	return nil
}

func (t *test) send(ctx context.Context, to *common.Address, data []byte) (hash common.Hash, err error) {
	transaction := map[string]any{"from": t.from, "input": hexutil.Bytes(data)}
	if to != nil {
		transaction["to"] = to
	}
	err = t.client.CallContext(ctx, &hash, "eth_sendTransaction", transaction)
	return hash, err
}

func (t *test) callContract(ctx context.Context, method string) (common.Hash, error) {
	data, err := t.abi.Pack(method)
	if err != nil {
		return common.Hash{}, err
	}
	return t.send(ctx, &t.address, data)
}

func (t *test) increment(ctx context.Context) (common.Hash, error) {
	return t.callContract(ctx, "increment")
}

func (t *test) receipt(ctx context.Context, hash common.Hash) (*types.Receipt, error) {
	ctx, cancel := context.WithTimeout(ctx, waitTime)
	defer cancel()
	receipt, err := bind.WaitMined(ctx, t.reads, hash)
	if err != nil {
		return nil, fmt.Errorf("no receipt of %s: %w", hash, err)
	}
	if receipt.Status != types.ReceiptStatusSuccessful {
		return nil, fmt.Errorf("the status of %s is %d", hash, receipt.Status)
	}
	return receipt, nil
}

func (t *test) count(ctx context.Context) (uint64, error) {
	data, err := t.abi.Pack("count")
	if err != nil {
		return 0, err
	}
	answer, err := t.reads.CallContract(ctx, ethereum.CallMsg{To: &t.address, Data: data}, nil)
	if err != nil {
		return 0, err
	}
	return new(big.Int).SetBytes(answer).Uint64(), nil
}

func (t *test) expectCount(ctx context.Context, wanted uint64) error {
	found, err := t.count(ctx)
	if err == nil && found != wanted {
		err = fmt.Errorf("the counter is %d, not %d", found, wanted)
	}
	return err
}

func (t *test) deploy(ctx context.Context) error {
	var accounts []common.Address
	if err := t.client.CallContext(ctx, &accounts, "eth_accounts"); err != nil {
		return err
	}
	if !slices.Contains(accounts, t.from) {
		return fmt.Errorf("eth_accounts has %v, not %s", accounts, t.from)
	}
	hash, err := t.send(ctx, nil, t.contract.Bytecode)
	if err != nil {
		return err
	}
	receipt, err := t.receipt(ctx, hash)
	if err != nil {
		return err
	}
	t.address = receipt.ContractAddress
	code, err := t.reads.CodeAt(ctx, t.address, nil)
	if err == nil && !bytes.Equal(code, t.contract.DeployedBytecode) {
		err = fmt.Errorf("the code at %s is not the code of the contract", t.address)
	}
	return err
}

func (t *test) call(ctx context.Context) error {
	hash, err := t.increment(ctx)
	if err != nil {
		return err
	}
	receipt, err := t.receipt(ctx, hash)
	if err != nil {
		return err
	}
	if len(receipt.Logs) != 1 {
		return fmt.Errorf("the number of logs is %d, not 1", len(receipt.Logs))
	}
	log := receipt.Logs[0]
	topics := []common.Hash{t.abi.Events["Incremented"].ID, common.BytesToHash(t.from.Bytes())}
	if !slices.Equal(log.Topics, topics) {
		return fmt.Errorf("the topics of the log are %v, not %v", log.Topics, topics)
	}
	if count := new(big.Int).SetBytes(log.Data); !count.IsUint64() || count.Uint64() != 1 {
		return fmt.Errorf("Incremented.count is %s, not 1", count)
	}
	return t.expectCount(ctx, 1)
}

func (t *test) concurrent(ctx context.Context) error {
	before, err := t.count(ctx)
	if err != nil {
		return err
	}
	hashes := make([]common.Hash, concurrentSends)
	failures := make([]error, concurrentSends)
	var group sync.WaitGroup
	for i := range concurrentSends {
		group.Go(func() {
			if hashes[i], failures[i] = t.increment(ctx); failures[i] == nil {
				_, failures[i] = t.receipt(ctx, hashes[i])
			}
		})
	}
	group.Wait()
	if err := errors.Join(failures...); err != nil {
		return err
	}
	slices.SortFunc(hashes, common.Hash.Cmp)
	if different := len(slices.Compact(hashes)); different != concurrentSends {
		return fmt.Errorf("the number of different hashes is %d, not %d", different, concurrentSends)
	}
	return t.expectCount(ctx, before+concurrentSends)
}

func (t *test) restart(ctx context.Context) error {
	before, err := t.count(ctx)
	if err != nil {
		return err
	}
	first, err := t.increment(ctx)
	if err != nil {
		return err
	}
	if err := t.control(ctx, "/restart"); err != nil {
		return err
	}
	if _, err := t.receipt(ctx, first); err != nil {
		return err
	}
	second, err := t.increment(ctx)
	if err != nil {
		return err
	}
	if _, err := t.receipt(ctx, second); err != nil {
		return err
	}
	return t.expectCount(ctx, before+2)
}

// The transaction is replaced while there is no mining, which resumes whatever happens.
func (t *test) sendAndReplace(ctx context.Context) (hash common.Hash, err error) {
	if err := t.control(ctx, "/hold"); err != nil {
		return hash, err
	}
	defer func() { err = errors.Join(err, t.control(ctx, "/mine")) }()
	hash, err = t.increment(ctx)
	if err != nil {
		return hash, err
	}
	return hash, t.control(ctx, "/replace/"+hash.Hex())
}

func (t *test) replacement(ctx context.Context) error {
	before, err := t.count(ctx)
	if err != nil {
		return err
	}
	hash, err := t.sendAndReplace(ctx)
	if err != nil {
		return err
	}
	receipt, err := t.receipt(ctx, hash)
	if err != nil {
		return err
	}
	if receipt.TxHash == hash {
		return errors.New("the transaction was not replaced")
	}
	return t.expectCount(ctx, before+1)
}

func (t *test) revert(ctx context.Context) error {
	before, err := t.count(ctx)
	if err != nil {
		return err
	}
	hash, err := t.callContract(ctx, "fail")
	if err == nil {
		return fmt.Errorf("there was no error, but %s", hash)
	}
	var withData rpc.DataError
	if !errors.As(err, &withData) {
		return fmt.Errorf("the error has no data: %w", err)
	}
	// The data is an object with the id of the transaction; its member data has the bytes, as for eth_estimateGas.
	object, _ := withData.ErrorData().(map[string]any)
	data, _ := object["data"].(string)
	selector := hexutil.Encode(t.abi.Errors["Refused"].ID.Bytes()[:4])
	if !strings.HasPrefix(data, selector) {
		return fmt.Errorf("the data of the error is %v, not Refused (%s): %w", withData.ErrorData(), selector, err)
	}
	return t.expectCount(ctx, before)
}

func version() string {
	info, _ := debug.ReadBuildInfo()
	for _, module := range info.Deps {
		if module.Path == "github.com/ethereum/go-ethereum" {
			return strings.TrimPrefix(module.Version, "v")
		}
	}
	return "unknown"
}

// connect takes the directory of the contract's artifacts.
func connect(contracts string) (*test, error) {
	text, err := os.ReadFile(filepath.Join(contracts, "Counter.json"))
	if err != nil {
		return nil, err
	}
	t := &test{from: common.HexToAddress(os.Getenv("GAPLESS_FROM")), controlURL: os.Getenv("CONTROL_URL")}
	if err := json.Unmarshal(text, &t.contract); err != nil {
		return nil, err
	}
	if t.abi, err = abi.JSON(bytes.NewReader(t.contract.ABI)); err != nil {
		return nil, err
	}
	var options []rpc.ClientOption
	if key := os.Getenv("GAPLESS_API_KEY"); key != "" {
		options = append(options, rpc.WithHeader("Authorization", "Bearer "+key))
	}
	if t.client, err = rpc.DialOptions(context.Background(), os.Getenv("GAPLESS_RPC_URL"), options...); err != nil {
		return nil, err
	}
	t.reads = ethclient.NewClient(t.client)
	return t, nil
}

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: client <directory of Counter.json>")
		os.Exit(2)
	}
	t, err := connect(os.Args[1])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	fmt.Println("version go-ethereum", version())
	failed := false
	for _, scenario := range []struct {
		name string
		run  func(context.Context) error
	}{
		{"deploy", t.deploy},
		{"call", t.call},
		{"concurrent", t.concurrent},
		{"restart", t.restart},
		{"replacement", t.replacement},
		{"revert", t.revert},
	} {
		ctx, cancel := context.WithTimeout(context.Background(), scenarioTime)
		err := scenario.run(ctx)
		cancel()
		if err != nil {
			failed = true
			text, _, _ := strings.Cut(err.Error(), "\n")
			fmt.Printf("FAILED %s: %s\n", scenario.name, text)
			continue
		}
		fmt.Println("ok", scenario.name)
	}
	if failed {
		os.Exit(1)
	}
}
