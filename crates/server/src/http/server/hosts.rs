//! Who may ask: under which names the service answers, and which pages of a browser may speak to it.
//!
//! # Note [Browsers]
//!
//! A service on 127.0.0.1 can be reached by every page that its user opens. A page of another site can send requests
//! without reading the answers; the browser says where they come from in `Origin`, and only the service's own
//! origin is let in. A page can also have the name of its site lead to 127.0.0.1 after it was loaded (DNS rebinding), and
//! is then of one origin with the service; but its requests carry that name in `Host`, which is no name of
//! the service. An address is no name: it cannot be made to lead elsewhere. So where the service listens on all
//! addresses of a machine, and cannot know which these are from outside (of a container, say), any address will do.
//!
//! Programs other than browsers send no `Origin`. They are let in, whatever content type they claim.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;
use std::sync::Arc;

use axum::http::header::{HOST, ORIGIN};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderValue, Request, Uri, Version};

use super::transfer::Arrival;
use crate::http::response::problem::{Code, Problem};
use crate::limits::shorten;

/// A name or an address under which the service is known, without scheme and port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostName(String);

/// Something that is no host name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{given:?} is not a name or an address; give it without scheme and port, such as `gpu-box.lan`"
)]
pub struct NotAHostName {
    given: String,
}

impl FromStr for HostName {
    type Err = NotAHostName;

    fn from_str(given: &str) -> Result<HostName, NotAHostName> {
        let name = HostName::of(given);
        let is_address = name.0.parse::<IpAddr>().is_ok();
        let is_name = !name.0.is_empty()
            && name
                .0
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_'));
        if is_address || is_name {
            Ok(name)
        } else {
            Err(NotAHostName {
                given: shorten(given),
            })
        }
    }
}

impl fmt::Display for HostName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl HostName {
    /// One way to write what can be written in several.
    fn of(host: &str) -> HostName {
        let bare = host
            .strip_prefix('[')
            .and_then(|host| host.strip_suffix(']'))
            .unwrap_or(host);
        HostName(match bare.parse::<IpAddr>() {
            Ok(address) => address.to_canonical().to_string(),
            Err(_) => bare.strip_suffix('.').unwrap_or(bare).to_ascii_lowercase(),
        })
    }

    fn address(&self) -> Option<IpAddr> {
        self.0.parse().ok()
    }
}

/// The names under which the service answers. By default those of the machine it runs on, for itself.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Hosts {
    listen: Option<IpAddr>,
    names: Vec<HostName>,
}

impl Hosts {
    /// Also under the address it listens on: under any, where that is every address of the machine.
    #[must_use]
    pub fn listening_on(self, address: IpAddr) -> Hosts {
        Hosts {
            listen: Some(address.to_canonical()),
            ..self
        }
    }

    /// Also under these names.
    #[must_use]
    pub fn known_as(mut self, names: impl IntoIterator<Item = HostName>) -> Hosts {
        self.names.extend(names);
        self
    }

    /// Whether a request may be answered: see Note [Browsers].
    pub(in crate::http) fn admit<B>(&self, request: &Request<B>) -> Result<(), Problem> {
        let given = asked_hosts(request);
        // RFC 9112, section 3.2: what came over a connection.
        let came = request.extensions().get::<Arc<Arrival>>().is_some();
        if came && given.is_empty() && request.version() == Version::HTTP_11 {
            let detail = "a request of HTTP/1.1 says in `Host` whom it is for";
            return Err(Problem::new(Code::HeaderInvalid, detail));
        }
        for host in &given {
            let authority = authority(host);
            let is_ours = authority
                .as_ref()
                .is_some_and(|authority| self.are(&HostName::of(authority.host())));
            if !is_ours {
                return Err(misdirected(host));
            }
        }
        let own = given.first().and_then(|host| authority(host));
        for origin in request.headers().get_all(ORIGIN) {
            let is_own = own.as_ref().is_some_and(|own| is_origin_of(origin, own));
            if !is_own {
                return Err(foreign(origin));
            }
        }
        Ok(())
    }

    fn are(&self, host: &HostName) -> bool {
        if self.names.contains(host) {
            return true;
        }
        match host.address() {
            Some(address) => {
                address.is_loopback()
                    || self
                        .listen
                        .is_some_and(|listen| listen.is_unspecified() || listen == address)
            }
            None => host.0 == "localhost",
        }
    }
}

/// Whom a request is for, in all places that say it. Requests of HTTP/1.0 need not.
fn asked_hosts<B>(request: &Request<B>) -> Vec<String> {
    let text = |value: &HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    let headers: &HeaderMap = request.headers();
    let target = request
        .uri()
        .authority()
        .map(|host| host.as_str().to_owned());
    target
        .into_iter()
        .chain(headers.get_all(HOST).iter().map(text))
        .collect()
}

/// A host with its port, if it is one.
fn authority(host: &str) -> Option<Authority> {
    let authority = host.parse::<Authority>().ok()?;
    (!authority.as_str().contains('@')).then_some(authority)
}

/// Whether a page of this origin came from `own`. Behind a proxy that speaks TLS, the scheme may be `https`.
fn is_origin_of(origin: &HeaderValue, own: &Authority) -> bool {
    let Some(origin) = origin
        .to_str()
        .ok()
        .and_then(|text| text.parse::<Uri>().ok())
    else {
        return false;
    };
    let usual_port = match origin.scheme_str() {
        Some("http") => 80,
        Some("https") => 443,
        Some(_) | None => return false,
    };
    let Some(theirs) = origin.authority() else {
        return false;
    };
    HostName::of(theirs.host()) == HostName::of(own.host())
        && theirs.port_u16().unwrap_or(usual_port) == own.port_u16().unwrap_or(usual_port)
}

fn misdirected(host: &str) -> Problem {
    let host = shorten(host);
    let name = authority(&host).map_or_else(|| "NAME".to_owned(), |known| known.host().to_owned());
    Problem::new(
        Code::HostUnknown,
        format!(
            "the service does not answer to the host {host:?}; if that is its name, start it with `--allowed-host {name}`"
        ),
    )
}

fn foreign(origin: &HeaderValue) -> Problem {
    let origin = shorten(&String::from_utf8_lossy(origin.as_bytes()));
    Problem::new(
        Code::OriginForbidden,
        format!(
            "pages of {origin:?} may not ask this service; programs that send no `Origin` may, and so may pages of \
             its own address"
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status_of(hosts: &Hosts, headers: &[(&str, &str)]) -> u16 {
        let mut request = Request::post("/v1/fits");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        match hosts.admit(&request.body(()).unwrap()) {
            Ok(()) => 200,
            Err(problem) => problem.status,
        }
    }

    fn host(hosts: &Hosts, host: &str) -> u16 {
        status_of(hosts, &[("host", host)])
    }

    #[test]
    fn loopback_is_known_under_any_port_and_spelling() {
        let hosts = Hosts::default();
        for known in [
            "localhost",
            "LOCALHOST:8080",
            "localhost.:1",
            "127.0.0.1:8080",
            "127.1.2.3",
            "[::1]:80",
            "[::ffff:127.0.0.1]:80",
        ] {
            assert_eq!(host(&hosts, known), 200, "{known}");
        }
    }

    #[test]
    fn other_names_and_addresses_are_not() {
        let hosts = Hosts::default().listening_on("192.168.1.7".parse().unwrap());
        for unknown in [
            "",
            "evil.example:8080",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "evil.example@127.0.0.1",
            "192.168.1.8",
            "192.168.1.7.evil.example",
            "[fe80::1]",
            "127.0.0.1 evil.example",
            "127.0.0.1/evil",
        ] {
            assert_eq!(host(&hosts, unknown), 421, "{unknown}");
        }
        assert_eq!(host(&hosts, "192.168.1.7:8080"), 200);
        let twice = [("host", "localhost"), ("host", "evil.example")];
        assert_eq!(status_of(&hosts, &twice), 421);
    }

    #[test]
    fn names_are_known_when_they_were_given() {
        let names = ["GPU-box.lan", "fd00::7"].map(|name| name.parse().unwrap());
        let hosts = Hosts::default().known_as(names);

        assert_eq!(host(&hosts, "gpu-box.lan:8080"), 200);
        assert_eq!(host(&hosts, "[fd00:0::7]:8080"), 200);
        assert_eq!(host(&hosts, "box.lan"), 421);
    }

    #[test]
    fn on_all_addresses_any_address_is_known_and_no_name() {
        let hosts = Hosts::default().listening_on("0.0.0.0".parse().unwrap());

        assert_eq!(host(&hosts, "10.0.0.3:8080"), 200);
        assert_eq!(host(&hosts, "batchfit:8080"), 421);
    }

    #[test]
    fn the_target_of_a_request_counts_like_its_host() {
        let request = Request::get("http://evil.example/v1/fits").header("host", "localhost");

        let refused = Hosts::default().admit(&request.body(()).unwrap());

        assert_eq!(refused.unwrap_err().status, 421);
    }

    #[test]
    fn only_pages_of_the_service_may_ask() {
        let hosts = Hosts::default();
        let from = |origin| status_of(&hosts, &[("host", "localhost:8080"), ("origin", origin)]);

        assert_eq!(from("http://localhost:8080"), 200);
        for foreign in [
            "http://localhost:3000",
            "http://localhost",
            "http://127.0.0.1:8080",
            "https://evil.example",
            "null",
            "",
            "file://localhost:8080",
            "chrome-extension://abc",
        ] {
            assert_eq!(from(foreign), 403, "{foreign}");
        }
        let usual = [("host", "localhost"), ("origin", "https://localhost")];
        assert_eq!(status_of(&hosts, &usual), 200);
        let both = [
            ("host", "localhost"),
            ("origin", "http://localhost"),
            ("origin", "http://evil.example"),
        ];
        assert_eq!(status_of(&hosts, &both), 403);
        assert_eq!(status_of(&hosts, &[("origin", "http://localhost")]), 403);
    }

    #[test]
    fn what_is_no_host_name_is_refused_where_it_is_given() {
        for wrong in ["", "http://box", "box:80", "a b", "*.lan", "box/"] {
            assert!(wrong.parse::<HostName>().is_err(), "{wrong}");
        }
    }
}
