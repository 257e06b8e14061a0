//! A fake remote signer over TCP, for tests of failures and wrong responses.

use std::sync::{Arc, Mutex};

use ethers_core::types::transaction::eip2718::TypedTransaction;
use ethers_core::types::{Bytes, Signature, U256};
use ethers_signers::{LocalWallet, Signer as _};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use gapless_domain::{Address, ChainId, Fees, Nonce, Payload, TxKind, UnsignedTx};

/// A received request.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    /// Method and path: `POST /sign`.
    pub(crate) line: String,
    /// In received order, with lower-case names.
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) text: String,
    /// Null if the text is not JSON.
    pub(crate) body: Value,
}

impl Asked {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(have, _)| have == name).map(|(_, value)| value.as_str())
    }
}

/// How the signer reacts to a request.
pub(crate) enum Act {
    Answer(u16, String),
    /// A response with this `Date` header.
    AnswerAt(chrono::DateTime<chrono::Utc>, u16, String),
    /// The connection closes in the middle of this body.
    Truncate(String),
    Reset,
    Hang,
}

pub(crate) struct FakeSigner {
    pub(crate) url: String,
    seen: Arc<Mutex<Vec<Asked>>>,
}

impl FakeSigner {
    pub(crate) async fn start(act: impl Fn(&Asked) -> Act + Send + Sync + 'static) -> FakeSigner {
        FakeSigner::serve(None, act).await
    }

    pub(crate) async fn with_tls(
        tls: TlsAcceptor,
        act: impl Fn(&Asked) -> Act + Send + Sync + 'static,
    ) -> FakeSigner {
        FakeSigner::serve(Some(tls), act).await
    }

    async fn serve(
        tls: Option<TlsAcceptor>,
        act: impl Fn(&Asked) -> Act + Send + Sync + 'static,
    ) -> FakeSigner {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let scheme = if tls.is_some() { "https" } else { "http" };
        let seen = Arc::new(Mutex::new(Vec::new()));
        let signer = FakeSigner { url: format!("{scheme}://127.0.0.1:{port}"), seen: Arc::clone(&seen) };
        let act = Arc::new(act);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (act, seen, tls) = (Arc::clone(&act), Arc::clone(&seen), tls.clone());
                tokio::spawn(async move {
                    match tls {
                        Some(tls) => converse(tls.accept(stream).await.ok()?, &*act, &seen).await,
                        None => converse(stream, &*act, &seen).await,
                    }
                });
            }
        });
        signer
    }

    pub(crate) fn seen(&self) -> Vec<Asked> {
        self.seen.lock().unwrap().clone()
    }
}

async fn converse(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    act: &(impl Fn(&Asked) -> Act + Send + Sync),
    seen: &Mutex<Vec<Asked>>,
) -> Option<()> {
    let mut stream = BufReader::new(stream);
    loop {
        let (mut line, mut headers) = (String::new(), Vec::new());
        if stream.read_line(&mut line).await.ok()? == 0 {
            return None;
        }
        loop {
            let mut header = String::new();
            if stream.read_line(&mut header).await.ok()? == 0 {
                return None;
            }
            let Some((name, value)) = header.trim().split_once(": ") else { break };
            headers.push((name.to_lowercase(), value.to_owned()));
        }
        let line = line.trim().trim_end_matches(" HTTP/1.1").to_owned();
        let mut asked = Asked { line, headers, text: String::new(), body: Value::Null };
        let mut body = vec![0; asked.header("content-length").unwrap_or("0").parse().ok()?];
        stream.read_exact(&mut body).await.ok()?;
        asked.body = serde_json::from_slice(&body).unwrap_or_default();
        asked.text = String::from_utf8_lossy(&body).into_owned();
        seen.lock().unwrap().push(asked.clone());
        let mut date = String::new();
        let (status, text, part) = match act(&asked) {
            Act::Answer(status, text) => (status, text, 1),
            Act::AnswerAt(at, status, text) => {
                date = format!("Date: {}\r\n", at.format("%a, %d %b %Y %H:%M:%S GMT"));
                (status, text, 1)
            }
            Act::Truncate(text) => (200, text, 2),
            Act::Reset => return None,
            Act::Hang => std::future::pending().await,
        };
        let head = format!("HTTP/1.1 {status} Said\r\n{date}Content-Length: {}\r\n\r\n", text.len());
        stream.write_all(head.as_bytes()).await.ok()?;
        stream.write_all(&text.as_bytes()[..text.len() / part]).await.ok()?;
        stream.flush().await.ok()?;
        if part > 1 {
            return None;
        }
    }
}

pub(crate) fn wallet() -> LocalWallet {
    "4646464646464646464646464646464646464646464646464646464646464646".parse().unwrap()
}

pub(crate) fn signature(wallet: &LocalWallet, tx: &UnsignedTx) -> Signature {
    wallet.sign_transaction_sync(&tx.typed()).unwrap()
}

/// The correctly signed transaction.
pub(crate) fn signed(wallet: &LocalWallet, tx: &UnsignedTx) -> Bytes {
    tx.typed().rlp_signed(&signature(wallet, tx))
}

/// One transaction of each type, with distinct values in all fields.
pub(crate) fn each_type() -> [UnsignedTx; 3] {
    let dynamic = Fees::Eip1559 { max_fee_per_gas: 30.into(), max_priority_fee_per_gas: 2.into() };
    let legacy = Fees::Legacy { gas_price: 20.into() };
    let tx = |kind, fees, access_list: Value| UnsignedTx {
        chain_id: ChainId(31337),
        from: wallet().address(),
        nonce: Nonce(9),
        gas_limit: 90_000.into(),
        fees,
        payload: Payload {
            kind,
            data: Bytes::from_static(&[0xab, 0xcd, 0, 1]),
            access_list: serde_json::from_value(access_list).unwrap(),
            ..Payload::transfer(Address::repeat_byte(0x35), U256::exp10(18))
        },
    };
    let list = json!([{ "address": Address::repeat_byte(7), "storageKeys": [gapless_domain::H256::repeat_byte(8)] }]);
    let txs = [
        tx(TxKind::Legacy, legacy, json!([])),
        tx(TxKind::Legacy, legacy, list.clone()),
        tx(TxKind::Eip1559, dynamic, list),
    ];
    assert!(matches!(txs[0].typed(), TypedTransaction::Legacy(_)));
    assert!(matches!(txs[1].typed(), TypedTransaction::Eip2930(_)));
    assert!(matches!(txs[2].typed(), TypedTransaction::Eip1559(_)));
    txs
}
