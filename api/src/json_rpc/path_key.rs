//! A key as the last segment of the URL, for clients that cannot set headers. It is removed from the request before
//! anything else sees the path: it is in no log, no trace and no response.

use gapless_config::Secret;
use poem::Request;

use super::PREFIX;

/// Every key begins with it.
const KEY: &str = "gpl_";

#[derive(Clone, Debug)]
pub(crate) struct PathKey(Secret);

impl PathKey {
    pub(crate) fn expose(&self) -> &str {
        self.0.expose()
    }

    /// Cuts everything after `/rpc/{chainId}` and stores it with the request. In any other path, what looks like a key is
    /// cut too: it was meant for this endpoint.
    pub(crate) fn take(request: &mut Request) {
        let Some((path, key)) = split(request.uri().path()) else { return };
        let mut parts = request.uri().clone().into_parts();
        let query = request.uri().query().map(|query| format!("?{query}")).unwrap_or_default();
        // A part of a valid path is a valid path.
        parts.path_and_query = format!("{path}{query}").parse().ok();
        if let Ok(uri) = parts.try_into() {
            *request.uri_mut() = uri;
            if !key.is_empty() && path.starts_with(PREFIX) {
                request.set_data(PathKey(Secret::new(key)));
            }
        }
    }
}

/// The path without a key, and the key. `None`: there is none.
fn split(path: &str) -> Option<(String, String)> {
    if let Some((chain_id, key)) = path.strip_prefix(PREFIX).and_then(|rest| rest.split_once('/'))
        && !chain_id.contains(KEY)
    {
        return Some((format!("{PREFIX}{chain_id}"), key.to_owned()));
    }
    let begin = path.find(KEY)?;
    Some((path[..begin].to_owned(), String::new()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_after_the_chain_id_is_cut() {
        for (path, expected) in [
            ("/rpc/1", None),
            ("/rpc/1/gpl_a_b", Some(("/rpc/1", "gpl_a_b"))),
            ("/rpc/1/gpl_a_b/more", Some(("/rpc/1", "gpl_a_b/more"))),
            ("/rpc/1/", Some(("/rpc/1", ""))),
            ("/api/v1/tx/x", None),
            // Mistakes: no chain id, a slash too many, another case, an encoded slash, a prefix.
            ("/rpc/gpl_a_b", Some(("/rpc/", ""))),
            ("/rpc/gpl_a_b/1", Some(("/rpc/", ""))),
            ("//rpc/1/gpl_a_b", Some(("//rpc/1/", ""))),
            ("/RPC/1/gpl_a_b", Some(("/RPC/1/", ""))),
            ("/rpc/1%2Fgpl_a_b", Some(("/rpc/1%2F", ""))),
            ("/gapless/rpc/1/gpl_a_b", Some(("/gapless/rpc/1/", ""))),
        ] {
            let expected = expected.map(|(path, key)| (path.to_owned(), key.to_owned()));
            assert_eq!(split(path), expected, "{path}");
        }
    }

    #[test]
    fn the_request_no_longer_has_the_key() {
        let mut request = Request::builder().uri("/rpc/31337/gpl_id_secret?x=1".parse().unwrap()).finish();
        PathKey::take(&mut request);
        assert_eq!(request.uri().to_string(), "/rpc/31337?x=1");
        let key = request.data::<PathKey>().unwrap();
        assert_eq!(key.expose(), "gpl_id_secret");
        assert!(!format!("{key:?}").contains("secret"));
    }
}
