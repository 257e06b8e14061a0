//! A JSON-RPC client over one connection.

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use super::Connection;

#[derive(Debug)]
pub(crate) struct Rpc {
    connection: Connection,
}

impl Rpc {
    pub(crate) async fn open(port: u16) -> Result<Rpc> {
        Ok(Rpc { connection: Connection::open(port).await? })
    }

    pub(crate) async fn call(&mut self, method: &str, params: Value) -> Result<Value> {
        self.batch(method, &[params]).await?.pop().context("no answer")
    }

    /// A batch of calls of one method. An error response is an `Err`.
    pub(crate) async fn batch(&mut self, method: &str, params: &[Value]) -> Result<Vec<Value>> {
        let call = |(id, params): (usize, &Value)| json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
        let calls: Vec<Value> = params.iter().enumerate().map(call).collect();
        let (_, body) = self.connection.post("/", &serde_json::to_string(&calls)?).await?;
        let answers: Vec<Value> = serde_json::from_slice(&body).context("not a batch response")?;
        let mut results = vec![Value::Null; params.len()];
        for mut answer in answers {
            if let Some(error) = answer.get("error") {
                bail!("{method}: {error}");
            }
            let slot = answer["id"].as_u64().and_then(|id| results.get_mut(usize::try_from(id).ok()?));
            *slot.context("a response with an unknown id")? = answer["result"].take();
        }
        Ok(results)
    }
}
