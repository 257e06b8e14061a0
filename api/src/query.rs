//! Query parameters: refuses unknown and repeated ones, which the framework ignores. A misspelt filter would list
//! everything. Malformed ones are described in terms of the document, not of this program's types.

use std::collections::BTreeMap;
use std::sync::Arc;

use poem::http::Method;
use poem::{Endpoint, Middleware, Request};
use poem_openapi::OperationId;
use poem_openapi::error::{ParseParamError, ParsePathError};
use serde_json::Value;

use crate::error::ApiError;
use crate::routes;
use crate::wire::TIME_FORMAT;

/// What each query parameter of an operation must be, by its name.
type Parameters = BTreeMap<String, String>;

/// An operation of the document.
#[derive(Debug)]
struct Operation {
    method: Method,
    /// Segments of the path; parameters are in braces.
    path: Vec<String>,
    parameters: Parameters,
}

#[derive(Clone, Debug)]
pub(crate) struct QueryMiddleware {
    operations: Arc<Vec<Operation>>,
}

impl QueryMiddleware {
    pub(crate) fn new() -> QueryMiddleware {
        let document = routes::service().spec();
        let document: Value = serde_json::from_str(&document).expect("the framework writes valid JSON");
        let mut operations = Vec::new();
        for (path, of_path) in document["paths"].as_object().into_iter().flatten() {
            for (method, operation) in of_path.as_object().into_iter().flatten() {
                let Ok(method) = method.to_uppercase().parse() else { continue };
                let parameters = parameters(&document, operation);
                operations.push(Operation { method, path: segments(path), parameters });
            }
        }
        // Not in the document, and without parameters.
        operations.extend(["/", "/docs", "/openapi.yaml"].map(|path| Operation {
            method: Method::GET,
            path: segments(path),
            parameters: Parameters::new(),
        }));
        // A literal segment takes precedence over a parameter.
        operations.sort_by_key(|operation| operation.path.iter().filter(|part| is_parameter(part)).count());
        QueryMiddleware { operations: Arc::new(operations) }
    }

    /// `None` if there is no such route; the framework then responds.
    fn parameters(&self, method: &Method, path: &str) -> Option<&Parameters> {
        // Every GET route also answers HEAD.
        let method = if method == Method::HEAD { &Method::GET } else { method };
        let requested = segments(path);
        let fits = |operation: &&Operation| {
            operation.path.len() == requested.len()
                && operation
                    .path
                    .iter()
                    .zip(&requested)
                    .all(|(known, part)| is_parameter(known) || known == part)
        };
        // The first path that fits is the one that the framework serves.
        let path = &self.operations.iter().find(fits)?.path;
        let operation = |known: &&Operation| known.path == *path && known.method == *method;
        Some(&self.operations.iter().find(operation)?.parameters)
    }
}

impl<E: Endpoint> Middleware<E> for QueryMiddleware {
    type Output = QueryEndpoint<E>;

    fn transform(&self, inner: E) -> Self::Output {
        QueryEndpoint { inner, known: self.clone() }
    }
}

pub(crate) struct QueryEndpoint<E> {
    inner: E,
    known: QueryMiddleware,
}

impl<E: Endpoint> Endpoint for QueryEndpoint<E> {
    type Output = E::Output;

    async fn call(&self, request: Request) -> poem::Result<E::Output> {
        let Some(known) = self.known.parameters(request.method(), request.uri().path()) else {
            return self.inner.call(request).await;
        };
        let given: Vec<(String, String)> =
            request.params().map_err(|_| ApiError::invalid("query", "must be name=value pairs"))?;
        check(known, &given)?;
        self.inner.call(request).await.map_err(|error| explain(known, &given, error))
    }
}

fn check(known: &Parameters, given: &[(String, String)]) -> Result<(), ApiError> {
    for (index, (name, _)) in given.iter().enumerate() {
        // Nobody needs more of a name that is wrong.
        let shown: String = name.chars().take(100).collect();
        if !known.contains_key(name) {
            let names: Vec<&str> = known.keys().map(String::as_str).collect();
            let names = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
            let problem = format!("is not a parameter of this route; its query parameters: {names}");
            return Err(ApiError::invalid(&shown, problem));
        }
        if given[..index].iter().any(|(earlier, _)| earlier == name) {
            return Err(ApiError::invalid(&shown, "is given twice"));
        }
    }
    Ok(())
}

/// Replaces the framework's errors about parameters, which name types of this program.
fn explain(known: &Parameters, given: &[(String, String)], error: poem::Error) -> poem::Error {
    let explained = if let Some(ParseParamError { name, .. }) = error.downcast_ref() {
        let is_given = given.iter().any(|(given, _)| given == name);
        let problem = match known.get(*name) {
            Some(_) if !is_given => "is required",
            Some(problem) => problem,
            None => "is not valid",
        };
        ApiError::invalid(name, problem)
    } else if let Some(ParsePathError { name, .. }) = error.downcast_ref() {
        ApiError::invalid(name, "is not valid")
    } else {
        return error;
    };
    let mut replaced = poem::Error::from(explained);
    if let Some(operation) = error.data::<OperationId>() {
        // The label of the metrics.
        replaced.set_data(*operation);
    }
    replaced
}

fn parameters(document: &Value, operation: &Value) -> Parameters {
    let all = operation["parameters"].as_array().into_iter().flatten();
    let in_query = all.filter(|parameter| parameter["in"] == "query");
    in_query
        .filter_map(|parameter| {
            let name = parameter["name"].as_str()?;
            Some((name.to_owned(), expectation(document, &parameter["schema"])))
        })
        .collect()
}

fn expectation(document: &Value, schema: &Value) -> String {
    let named = schema["$ref"].as_str().and_then(|name| document.pointer(name.trim_start_matches('#')));
    let schema = named.unwrap_or(schema);
    if let Some(names) = schema["enum"].as_array() {
        let names: Vec<&str> = names.iter().filter_map(Value::as_str).collect();
        return format!("must be one of {}", names.join(", "));
    }
    match (schema["type"].as_str(), schema["format"].as_str()) {
        (_, Some("date-time")) => format!("must be {TIME_FORMAT}"),
        (Some("integer"), _) => "must be a whole number of at least 0, and not too large".to_owned(),
        _ => "is not valid".to_owned(),
    }
}

fn segments(path: &str) -> Vec<String> {
    path.trim_matches('/').split('/').map(str::to_owned).collect()
}

fn is_parameter(segment: &str) -> bool {
    segment.starts_with('{')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parameters_of_a_route_are_those_of_the_document() {
        let known = QueryMiddleware::new();
        let names = |method: Method, path: &str| {
            known.parameters(&method, path).map(|known| known.keys().map(String::as_str).collect::<Vec<_>>())
        };
        let list = ["chainId", "createdAfter", "createdBefore", "cursor", "limit", "state", "submitter"];
        assert_eq!(names(Method::GET, "/api/v1/tx").as_deref(), Some(&list[..]));
        assert_eq!(names(Method::HEAD, "/api/v1/tx").as_deref(), Some(&list[..]));
        assert_eq!(names(Method::POST, "/api/v1/tx").as_deref(), Some(&[][..]));
        assert_eq!(names(Method::GET, "/api/v1/tx/7").as_deref(), Some(&["after", "wait"][..]));
        let by_request = ["chainId", "requestId", "submitter"];
        assert_eq!(names(Method::GET, "/api/v1/tx/by-request").as_deref(), Some(&by_request[..]));
        assert_eq!(names(Method::GET, "/docs").as_deref(), Some(&[][..]));
        assert_eq!(names(Method::GET, "/nowhere"), None);
        assert_eq!(names(Method::GET, "/api/v1/tx/batch"), None, "the path has no GET");
    }

    #[test]
    fn a_malformed_parameter_is_described_for_clients() {
        let known = QueryMiddleware::new();
        let list = known.parameters(&Method::GET, "/api/v1/tx").unwrap();
        assert!(list["state"].starts_with("must be one of QUEUED, IN_FLIGHT"), "{}", list["state"]);
        assert!(list["createdAfter"].contains("RFC 3339"), "{}", list["createdAfter"]);
        assert!(list["limit"].contains("whole number"), "{}", list["limit"]);
    }

    #[test]
    fn unknown_and_repeated_parameters_are_refused() {
        let known = QueryMiddleware::new();
        let list = known.parameters(&Method::GET, "/api/v1/tx").unwrap();
        let pairs =
            |names: &[&str]| names.iter().map(|name| (name.to_string(), "1".to_owned())).collect::<Vec<_>>();
        let refusal =
            |names: &[&str]| check(list, &pairs(names)).map_err(|error| error.problem().field.unwrap());
        assert_eq!(refusal(&["limit", "state"]), Ok(()));
        assert_eq!(refusal(&["limit", "submiter"]), Err("submiter".into()));
        assert_eq!(refusal(&["Limit"]), Err("Limit".into()), "names are case-sensitive");
        assert_eq!(refusal(&["limit", "state", "limit"]), Err("limit".into()));
    }
}
