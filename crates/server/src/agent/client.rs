//! Asks a service over HTTP/1.1, one connection for each question: behind a balancer the next one may go to another server.
//!
//! Without TLS: see docs/operate/agents.md for who speaks it instead.

use std::time::Duration;

use axum::body::Bytes;
use axum::http::header::{AUTHORIZATION, CONTENT_TYPE, HOST, USER_AGENT};
use axum::http::uri::Authority;
use axum::http::{HeaderValue, Method, Request, StatusCode, Uri};
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::net::TcpStream;

use super::alongside;
use crate::limits::shorten;
use crate::report::style::harmless;

/// How long a connection may take to open.
const CONNECT: Duration = Duration::from_secs(10);

/// Longest answer that is read, but for requests of jobs.
pub(super) const LONGEST: usize = 16 << 20;

/// A service.
#[derive(Debug, Clone)]
pub struct Server {
    /// As it was given, for people.
    url: String,
    host: Authority,
    /// What its paths begin with.
    below: String,
    /// Through whom it is asked.
    proxy: Option<Authority>,
    key: Option<HeaderValue>,
}

/// A service that cannot be asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotAServer {
    /// Not an address, as given.
    #[error("{0:?} is no address of a service, as http://127.0.0.1:8080 is")]
    Odd(String),
    /// TLS is not spoken, which the address as given needs.
    #[error(
        "{0:?} needs TLS, which batchfit does not speak: give the address of a proxy on this machine that does, such as \
         http://127.0.0.1:8081 (docs/operate/agents.md has one)"
    )]
    Tls(String),
    /// A name and password, which the service does not ask for.
    #[error(
        "an address has no name and password in it, which the service does not ask for: a key is given with --key-file"
    )]
    Credentials,
    /// The key has characters that none has.
    #[error("the key is none: it begins with batchfit_ and is one line")]
    Key,
}

/// A question.
#[derive(Debug, Clone)]
pub struct ServerRequest {
    /// How it is asked.
    pub method: Method,
    /// Below the address of the service, beginning with `/`.
    pub path: String,
    /// JSON, or nothing.
    pub body: Option<Vec<u8>>,
    /// How long it may take.
    pub within: Duration,
    /// Longest answer, in bytes.
    pub longest: usize,
}

/// An answer that is none of refusal.
#[derive(Debug, Clone)]
pub struct Answer {
    /// JSON, or nothing.
    pub body: Bytes,
}

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ServerError {
    /// No server there.
    #[error("{server} cannot be reached: {cause}")]
    Unreachable {
        /// Who was asked.
        server: String,
        /// What the system said.
        cause: String,
    },
    /// No answer in time.
    #[error("{server} did not answer within {} s", within.as_secs())]
    Silent {
        /// Who was asked.
        server: String,
        /// How long it was waited.
        within: Duration,
    },
    /// The service refused, or a proxy on the way to it.
    #[error("{detail}")]
    Refused {
        /// The HTTP status.
        status: u16,
        /// The end of the problem's `type`; empty where it is no problem document.
        kind: String,
        /// What the service said.
        detail: String,
    },
    /// More was answered than is read. Asked again it would be as much.
    #[error("{server} answers with more than {} MiB, which is not read", longest >> 20)]
    TooLong {
        /// Who was asked.
        server: String,
        /// As much would have been read, in bytes.
        longest: usize,
    },
    /// What was answered is not what the service answers.
    #[error("{server} answered something else than batchfit does: {what}")]
    Odd {
        /// Who was asked.
        server: String,
        /// What is odd.
        what: String,
    },
}

impl ServerError {
    /// Whether it may be otherwise in a moment, for the same question.
    pub fn may_pass(&self) -> bool {
        match self {
            ServerError::Unreachable { .. }
            | ServerError::Silent { .. }
            | ServerError::Odd { .. } => true,
            ServerError::TooLong { .. } => false,
            ServerError::Refused { status, .. } => {
                *status >= 500 || matches!(status, 408 | 425 | 429)
            }
        }
    }

    /// Whether the service says that what is asked about is not there, or not ours.
    pub(super) fn is_gone(&self) -> bool {
        matches!(self, ServerError::Refused { status, .. } if matches!(status, 404 | 409))
    }

    /// Whether it is this kind of problem.
    pub(super) fn is(&self, wanted: &str) -> bool {
        matches!(self, ServerError::Refused { kind, .. } if kind == wanted)
    }
}

/// What is read of a problem document.
#[derive(Debug, Deserialize)]
struct Problem {
    #[serde(rename = "type")]
    kind: String,
    detail: String,
}

impl ServerRequest {
    /// A question without a body.
    pub fn get(path: impl Into<String>) -> ServerRequest {
        ServerRequest {
            method: Method::GET,
            path: path.into(),
            body: None,
            within: Duration::from_secs(30),
            longest: LONGEST,
        }
    }

    /// A question with a body.
    pub fn with(
        method: Method,
        path: impl Into<String>,
        body: &impl serde::Serialize,
    ) -> ServerRequest {
        let body = serde_json::to_vec(body).expect("documents have text keys and finite numbers");
        ServerRequest {
            method,
            body: Some(body),
            ..ServerRequest::get(path)
        }
    }

    /// The same that may take so long.
    #[must_use]
    pub fn timeout(self, within: Duration) -> ServerRequest {
        ServerRequest { within, ..self }
    }
}

impl Server {
    /// The service at this address, asked with this key. `proxy` is the address of an HTTP proxy, not asked for the hosts in `direct`:
    /// names with commas in between, each of which stands for its subdomains too, or `*`.
    pub fn new(
        url: &str,
        key: Option<&str>,
        proxy: Option<&str>,
        direct: &str,
    ) -> Result<Server, NotAServer> {
        let (host, below) = parts(url)?;
        let key = key.map(|key| {
            let mut value = HeaderValue::from_str(&format!("Bearer {}", key.trim()))
                .map_err(|_| NotAServer::Key)?;
            value.set_sensitive(true);
            Ok(value)
        });
        let proxy = proxy.filter(|proxy| !proxy.is_empty() && !is_direct(host.host(), direct));
        Ok(Server {
            url: format!("http://{host}{below}"),
            proxy: proxy.map(parts).transpose()?.map(|(proxy, _)| proxy),
            host,
            below,
            key: key.transpose()?,
        })
    }

    /// Its address, for people.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Asks something.
    pub async fn send(&self, request: ServerRequest) -> Result<Answer, ServerError> {
        let within = request.within;
        // On the heap: it is held by many others.
        let exchange = Box::pin(self.exchange(request));
        let answered = tokio::time::timeout(within, exchange).await;
        answered.unwrap_or_else(|_| {
            Err(ServerError::Silent {
                server: self.url.clone(),
                within,
            })
        })
    }

    /// Asks something whose answer is JSON.
    pub async fn ask_json<T: DeserializeOwned>(
        &self,
        request: ServerRequest,
    ) -> Result<T, ServerError> {
        let answer = self.send(request).await?;
        serde_json::from_slice(&answer.body).map_err(|error| self.odd(&error.to_string()))
    }

    /// The error that something else was answered.
    pub(super) fn odd(&self, what: &str) -> ServerError {
        ServerError::Odd {
            server: self.url.clone(),
            what: shorten_text(what),
        }
    }

    async fn exchange(&self, request: ServerRequest) -> Result<Answer, ServerError> {
        let unreachable = |cause: String| ServerError::Unreachable {
            server: self.url.clone(),
            cause,
        };
        let to = self.proxy.as_ref().unwrap_or(&self.host);
        let name = to.host().trim_start_matches('[').trim_end_matches(']');
        let connecting = TcpStream::connect((name, to.port_u16().unwrap_or(80)));
        let stream = tokio::time::timeout(CONNECT, connecting).await;
        let stream = stream
            .map_err(|_| unreachable(format!("no connection within {} s", CONNECT.as_secs())))?
            .map_err(|error| unreachable(error.to_string()))?;
        let lost = |error: hyper::Error| unreachable(error.to_string());
        // Only a delay is at stake.
        let _ = stream.set_nodelay(true);
        let (mut sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(lost)?;
        let _connection = alongside(connection);
        let sent = sender.send_request(self.request(request.method, &request.path, request.body));
        let response = sent.await.map_err(lost)?;
        let status = response.status();
        let body = Limited::new(response.into_body(), request.longest);
        let body = body.collect().await.map_err(|error| {
            if error.is::<LengthLimitError>() {
                let (server, longest) = (self.url.clone(), request.longest);
                return ServerError::TooLong { server, longest };
            }
            unreachable(error.to_string())
        })?;
        let body = body.to_bytes();
        if status.is_success() {
            return Ok(Answer { body });
        }
        Err(refused(status, &body))
    }

    fn request(&self, method: Method, path: &str, body: Option<Vec<u8>>) -> Request<Full<Bytes>> {
        let path = format!("{}{path}", self.below);
        let target = match &self.proxy {
            Some(_) => format!("http://{}{path}", self.host),
            None => path,
        };
        let mut request = Request::new(Full::new(Bytes::from(body.unwrap_or_default())));
        *request.method_mut() = method;
        *request.uri_mut() = target.parse::<Uri>().unwrap_or_default();
        let headers = request.headers_mut();
        if let Ok(host) = HeaderValue::from_str(self.host.as_str()) {
            headers.insert(HOST, host);
        }
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let agent = concat!("batchfit/", env!("CARGO_PKG_VERSION"));
        headers.insert(USER_AGENT, HeaderValue::from_static(agent));
        if let Some(key) = &self.key {
            headers.insert(AUTHORIZATION, key.clone());
        }
        request
    }
}

/// What a service said that refused.
fn refused(status: StatusCode, body: &[u8]) -> ServerError {
    let (kind, detail) = match serde_json::from_slice::<Problem>(body) {
        Ok(Problem { kind, detail }) => {
            let kind = kind.rsplit('/').next().unwrap_or_default().to_owned();
            (kind, shorten_text(&detail))
        }
        Err(_) => (String::new(), format!("the answer is {status}")),
    };
    ServerError::Refused {
        status: status.as_u16(),
        kind,
        detail,
    }
}

/// A text from another program, of a length that a person reads, and without what a terminal would act on.
fn shorten_text(text: &str) -> String {
    let printable = text.chars().filter(|c| !c.is_control());
    harmless(&printable.take(2_000).collect::<String>())
}

/// Host and path of an address.
fn parts(url: &str) -> Result<(Authority, String), NotAServer> {
    let odd = || NotAServer::Odd(shorten(url));
    let uri: Uri = url.trim().parse().map_err(|_| odd())?;
    match uri.scheme_str() {
        Some("http") => {}
        Some("https") => return Err(NotAServer::Tls(shorten(url))),
        Some(_) | None => return Err(odd()),
    }
    let host = uri.authority().cloned().ok_or_else(odd)?;
    // They are for proxies that ask for them, which are not spoken to.
    if host.as_str().contains('@') {
        return Err(NotAServer::Credentials);
    }
    let behind = host.as_str().strip_prefix(host.host());
    let port = behind.and_then(|behind| behind.strip_prefix(':'));
    let is_port = |port: &str| port.parse::<u16>().is_ok_and(|port| port > 0);
    if port.is_some_and(|port| !is_port(port)) || uri.query().is_some() {
        return Err(odd());
    }
    Ok((host, uri.path().trim_end_matches('/').to_owned()))
}

/// Whether a host is asked without the proxy.
fn is_direct(host: &str, direct: &str) -> bool {
    let is_loopback = host == "localhost" || host == "[::1]" || host.starts_with("127.");
    let named = direct.split(',').map(str::trim);
    let mut named = named.filter(|name| !name.is_empty());
    is_loopback
        || named.any(|name| {
            let name = name.strip_prefix('.').unwrap_or(name);
            let is_below = || {
                let rest = host.strip_suffix(name);
                rest.is_some_and(|rest| rest.ends_with('.'))
            };
            name == "*" || host == name || is_below()
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_plain_http() {
        let url = |url: &str| Server::new(url, None, None, "").map(|server| server.url);

        assert_eq!(url("http://a:1").unwrap(), "http://a:1");
        assert_eq!(
            url("http://[::1]:8080/below/").unwrap(),
            "http://[::1]:8080/below"
        );
        assert!(matches!(url("https://a"), Err(NotAServer::Tls(_))));
        for odd in [
            "",
            "a:1",
            "ftp://a",
            "http://",
            "http://a/?b",
            "http://a:99999",
            "http://a:0",
        ] {
            assert!(matches!(url(odd), Err(NotAServer::Odd(_))), "{odd}");
        }
        assert_eq!(url("http://u:p@a"), Err(NotAServer::Credentials));
        let key = Server::new("http://a", Some("a\nb"), None, "");
        assert_eq!(key.unwrap_err(), NotAServer::Key);
    }

    #[test]
    fn some_hosts_are_asked_without_the_proxy() {
        assert!(is_direct("127.0.0.1", ""));
        assert!(is_direct("batchfit.lan", "x, .lan"));
        assert!(is_direct("batchfit.lan", "batchfit.lan"));
        assert!(is_direct("anything", "*"));
        assert!(!is_direct("batchfit.lan", ""));
        assert!(!is_direct("evil-lan", "lan"));
    }

    #[test]
    fn what_may_pass_is_tried_again() {
        let status = |status: u16| refused(StatusCode::from_u16(status).unwrap(), b"<html>");

        for passing in [500, 502, 503, 504, 429, 408] {
            assert!(status(passing).may_pass(), "{passing}");
        }
        for lasting in [400, 401, 403, 404, 409, 413, 421, 422] {
            assert!(!status(lasting).may_pass(), "{lasting}");
        }
        let problem = br#"{"type": "/problems/lease-lost", "detail": "gone\u001b[2J\u202e"}"#;
        let gone = refused(StatusCode::CONFLICT, problem);
        assert!(gone.is("lease-lost") && gone.is_gone());
        assert_eq!(gone.to_string(), "gone[2J\u{fffd}");
    }
}
