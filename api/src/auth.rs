//! Who may use admin routes. A handler that takes an `Admin` cannot be reached by anybody else.

use gapless::config::{Api, Secret};
use poem::web::headers::authorization::Bearer;
use poem::web::headers::{Authorization, HeaderMapExt};
use poem::{Request, RequestBody};
use poem_openapi::registry::{MetaSecurityScheme, Registry};
use poem_openapi::{ApiExtractor, ApiExtractorType, ExtractParamOptions};
use subtle::ConstantTimeEq;

use crate::app::SharedApp;
use crate::error::ApiError;

const SCHEME: &str = "adminToken";

/// From the configuration: the token, and whether this machine's own users need one.
#[derive(Clone, Debug)]
pub(crate) struct AdminPolicy {
    token: Secret,
    open: bool,
}

impl AdminPolicy {
    /// `admin_on_loopback` counts only when nobody else can connect.
    pub(crate) fn new(api: &Api) -> AdminPolicy {
        AdminPolicy {
            token: api.admin_token.clone(),
            open: api.admin_on_loopback && api.bind.ip().is_loopback(),
        }
    }

    /// `presented` is the bearer token of the request. A token that is presented must be right, even where none is needed.
    fn check(&self, presented: Option<&str>) -> Result<&'static str, ApiError> {
        match presented {
            Some(presented) if !self.token.is_empty() => {
                let same = presented.as_bytes().ct_eq(self.token.expose().as_bytes());
                if bool::from(same) { Ok("admin token") } else { Err(ApiError::Unauthorized) }
            }
            _ if self.open => Ok("loopback"),
            _ if self.token.is_empty() => Err(ApiError::AdminDisabled),
            _ => Err(ApiError::Unauthorized),
        }
    }
}

/// Somebody who may use admin routes.
#[derive(Debug)]
pub(crate) struct Admin {
    /// For the audit log: how they proved it, and where they came from.
    pub(crate) actor: String,
}

/// Anybody, and an admin if they say so: only who presents a token is shown more than others, even where any token
/// will do. A wrong one is refused rather than ignored.
#[derive(Debug)]
pub(crate) struct Caller {
    pub(crate) admin: Option<Admin>,
}

fn presented(request: &Request) -> Option<String> {
    request.headers().typed_get::<Authorization<Bearer>>().map(|header| header.token().to_owned())
}

fn admin(request: &Request, presented: Option<&str>) -> Result<Admin, ApiError> {
    // The state is put there by the server before any route; without it nobody is an admin.
    let app = request.data::<SharedApp>().ok_or(ApiError::AdminDisabled)?;
    let proof = app.admin.check(presented)?;
    // The plain address, without the framework's `socket://`.
    let from = request.remote_addr().as_socket_addr().map(ToString::to_string).unwrap_or_default();
    Ok(Admin { actor: format!("{proof} from {from}") })
}

fn register_scheme(registry: &mut Registry) {
    registry.create_security_scheme(
        SCHEME,
        MetaSecurityScheme {
            ty: "http",
            description: Some(
                "The token of `api.admin_token`. Not needed where `api.admin_on_loopback` is on and the server listens on \
                 a loopback address.",
            ),
            name: None,
            key_in: None,
            scheme: Some("bearer"),
            bearer_format: None,
            flows: None,
            openid_connect_url: None,
        },
    );
}

// Written out instead of derived: the derived extractor refuses a request without a header before anybody can say that
// none is needed here, or that admin routes are off.
impl<'a> ApiExtractor<'a> for Admin {
    const TYPES: &'static [ApiExtractorType] = &[ApiExtractorType::SecurityScheme];
    type ParamType = ();
    type ParamRawType = ();

    fn register(registry: &mut Registry) {
        register_scheme(registry);
    }

    fn security_schemes() -> Vec<&'static str> {
        vec![SCHEME]
    }

    async fn from_request(
        request: &'a Request,
        _body: &mut RequestBody,
        _options: ExtractParamOptions<()>,
    ) -> poem::Result<Self> {
        Ok(admin(request, presented(request).as_deref())?)
    }
}

impl<'a> ApiExtractor<'a> for Caller {
    const TYPES: &'static [ApiExtractorType] = &[ApiExtractorType::SecurityScheme];
    type ParamType = ();
    type ParamRawType = ();

    fn register(registry: &mut Registry) {
        register_scheme(registry);
    }

    fn security_schemes() -> Vec<&'static str> {
        vec![SCHEME]
    }

    fn has_security_fallback() -> bool {
        true
    }

    async fn from_request(
        request: &'a Request,
        _body: &mut RequestBody,
        _options: ExtractParamOptions<()>,
    ) -> poem::Result<Self> {
        let Some(token) = presented(request) else { return Ok(Caller { admin: None }) };
        match admin(request, Some(&token)) {
            Ok(admin) => Ok(Caller { admin: Some(admin) }),
            Err(ApiError::AdminDisabled) => Ok(Caller { admin: None }),
            Err(error) => Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(bind: &str, token: &str, admin_on_loopback: bool) -> AdminPolicy {
        let api = Api {
            bind: bind.parse().unwrap(),
            admin_token: Secret::new(token),
            admin_on_loopback,
            ..Api::default()
        };
        AdminPolicy::new(&api)
    }

    #[test]
    fn without_a_token_admin_routes_are_off() {
        let off = policy("127.0.0.1:1", "", false);
        assert!(matches!(off.check(None), Err(ApiError::AdminDisabled)));
        assert!(matches!(off.check(Some("guess")), Err(ApiError::AdminDisabled)));
        assert!(matches!(off.check(Some("")), Err(ApiError::AdminDisabled)));
    }

    #[test]
    fn with_a_token_only_that_token_opens_them() {
        let closed = policy("0.0.0.0:1", "s3cret", false);
        assert!(closed.check(Some("s3cret")).is_ok());
        for wrong in [None, Some(""), Some("s3cre"), Some("s3cret ")] {
            assert!(matches!(closed.check(wrong), Err(ApiError::Unauthorized)), "{wrong:?}");
        }
    }

    #[test]
    fn loopback_needs_no_token_and_the_open_network_always_does() {
        assert!(policy("127.0.0.1:1", "", true).check(None).is_ok());
        assert!(policy("[::1]:1", "", true).check(None).is_ok());
        assert!(matches!(policy("0.0.0.0:1", "", true).check(None), Err(ApiError::AdminDisabled)));
        assert!(matches!(
            policy("127.0.0.1:1", "s3cret", true).check(Some("guess")),
            Err(ApiError::Unauthorized)
        ));
    }
}
