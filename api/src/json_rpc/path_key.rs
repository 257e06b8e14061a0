//! A key as the last segment of the URL, for clients that cannot set headers. It is removed from the request before
//! anything else sees the path: it is in no log, no trace and no response.

use gapless_config::Secret;
use poem::Request;

use super::PREFIX;

#[derive(Clone, Debug)]
pub(crate) struct PathKey(Secret);

impl PathKey {
    pub(crate) fn expose(&self) -> &str {
        self.0.expose()
    }

    /// Cuts everything after `/rpc/{chainId}` and stores it with the request.
    pub(crate) fn take(request: &mut Request) {
        let Some((path, key)) = split(request.uri().path()) else { return };
        let mut parts = request.uri().clone().into_parts();
        let query = request.uri().query().map(|query| format!("?{query}")).unwrap_or_default();
        let (path, key) = (format!("{path}{query}"), PathKey(Secret::new(key)));
        // A part of a valid path is a valid path.
        parts.path_and_query = path.parse().ok();
        if let Ok(uri) = parts.try_into() {
            *request.uri_mut() = uri;
            request.set_data(key);
        }
    }
}

/// `None`: nothing follows the chain id.
fn split(path: &str) -> Option<(String, String)> {
    let (chain_id, key) = path.strip_prefix(PREFIX)?.split_once('/')?;
    Some((format!("{PREFIX}{chain_id}"), key.to_owned()))
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
