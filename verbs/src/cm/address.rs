//! Addresses as programs write them, and what becomes of them before a socket is made.

use std::fmt;
use std::net::{
    IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6, ToSocketAddrs as _,
};
use std::sync::Arc;

use super::error::ConnectError;

/// Where to connect to, or where to listen: an IP address or a host name, and a port.
///
/// Made from whatever a program has at hand: a [`SocketAddr`], a pair of host and port, or text such as
/// `"192.0.2.1:7471"`, `"[2001:db8::1]:7471"`, `"[fe80::1%eth0]:7471"` or `"storage.example:7471"`.
/// Making one never fails and never blocks; text that cannot be an address is refused by the call that
/// uses it.
///
/// ```
/// use iwarp_verbs::cm::Address;
///
/// assert_eq!(Address::from("[::1]:7471").to_string(), "[::1]:7471");
/// assert_eq!(Address::from(("storage.example", 7471)).to_string(), "storage.example:7471");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Address(Form);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Form {
    Socket(SocketAddr),
    Host { host: String, port: u16 },
    Text(String),
}

/// An address that was understood, though a name in it may still have to be looked up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    Socket(SocketAddr),
    Name { host: String, port: u16 },
}

impl Address {
    /// Takes the text apart, without looking any name up.
    pub(crate) fn target(&self) -> Result<Target, ConnectError> {
        match &self.0 {
            Form::Socket(addr) => Ok(Target::Socket(*addr)),
            Form::Host { host, port } => host_target(host, *port),
            Form::Text(text) => text_target(text),
        }
    }

    /// As [`target`](Self::target), and refuses at once what nobody can connect to.
    pub(crate) fn peer(&self) -> Result<Target, ConnectError> {
        let target = self.target()?;
        if target.is_literal() {
            target.resolve()?;
        }
        Ok(target)
    }

    /// The addresses to listen on or to bind to. Looks names up in the calling thread.
    pub(crate) fn resolve_blocking(&self) -> Result<Vec<SocketAddr>, ConnectError> {
        let found = match self.target()? {
            Target::Socket(addr) => vec![addr],
            Target::Name { host, port } => look_up(&host, port)?,
        };
        usable(found)
    }
}

impl Target {
    /// Looks a name up; a literal address is its own answer. Blocks the calling thread for a name.
    pub(crate) fn resolve(&self) -> Result<Vec<SocketAddr>, ConnectError> {
        let found = match self {
            Self::Socket(addr) => vec![*addr],
            Self::Name { host, port } => look_up(host, *port)?,
        };
        if found.iter().any(|addr| addr.port() == 0) {
            return Err(refuse(&self.to_string(), "port 0 can be listened on, not connected to"));
        }
        usable(found)
    }

    pub(crate) const fn is_literal(&self) -> bool {
        matches!(self, Self::Socket(_))
    }
}

fn host_target(host: &str, port: u16) -> Result<Target, ConnectError> {
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    if host.is_empty() {
        return Err(refuse(&format!(":{port}"), "the host is missing"));
    }
    Ok(host.parse::<IpAddr>().map_or_else(
        |_| Target::Name { host: host.to_owned(), port },
        |ip| Target::Socket(SocketAddr::new(ip, port)),
    ))
}

fn text_target(text: &str) -> Result<Target, ConnectError> {
    if let Ok(addr) = text.parse::<SocketAddr>() {
        return Ok(Target::Socket(addr));
    }
    let Some((host, port)) = text.rsplit_once(':') else {
        return Err(refuse(text, "the port is missing, as in host:7471"));
    };
    if host.contains(':') && !(host.starts_with('[') && host.ends_with(']')) {
        return Err(refuse(text, "an IPv6 address needs brackets, as in [::1]:7471"));
    }
    let Ok(port) = port.parse::<u16>() else {
        return Err(refuse(text, "the port is no number from 0 to 65535"));
    };
    host_target(host, port).map_err(|_| refuse(text, "the host is missing"))
}

fn look_up(host: &str, port: u16) -> Result<Vec<SocketAddr>, ConnectError> {
    let resolve = |cause| ConnectError::Resolve { host: host.to_owned(), cause: Arc::new(cause) };
    // The resolver repeats an address for each socket type and each source that knows it.
    let mut found = Vec::new();
    for addr in (host, port).to_socket_addrs().map_err(resolve)? {
        if !found.contains(&addr) {
            found.push(addr);
        }
    }
    if found.is_empty() {
        return Err(resolve(std::io::Error::other("the name has no address")));
    }
    Ok(found)
}

/// Leaves out link-local addresses without an interface, which mean nothing (FC-053).
fn usable(mut found: Vec<SocketAddr>) -> Result<Vec<SocketAddr>, ConnectError> {
    let first = found.first().copied();
    found.retain(|addr| match addr {
        SocketAddr::V6(v6) => v6.scope_id() != 0 || !is_link_local(v6.ip()),
        SocketAddr::V4(_) => true,
    });
    match first {
        Some(addr) if found.is_empty() => Err(refuse(
            &addr.to_string(),
            "a link-local address needs its interface, as in [fe80::1%eth0]:7471",
        )),
        _ => Ok(found),
    }
}

fn is_link_local(ip: &Ipv6Addr) -> bool {
    ip.segments()[0] & 0xffc0 == 0xfe80
}

fn refuse(text: &str, reason: &'static str) -> ConnectError {
    ConnectError::Address { text: text.to_owned(), reason }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Form::Socket(addr) => addr.fmt(f),
            Form::Host { host, port } if host.contains(':') && !host.starts_with('[') => {
                write!(f, "[{host}]:{port}")
            }
            Form::Host { host, port } => write!(f, "{host}:{port}"),
            Form::Text(text) => text.fmt(f),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Socket(addr) => addr.fmt(f),
            Self::Name { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Name { host, port } => write!(f, "{host}:{port}"),
        }
    }
}

impl From<SocketAddr> for Address {
    fn from(addr: SocketAddr) -> Self {
        Self(Form::Socket(addr))
    }
}

impl From<SocketAddrV4> for Address {
    fn from(addr: SocketAddrV4) -> Self {
        Self(Form::Socket(addr.into()))
    }
}

impl From<SocketAddrV6> for Address {
    fn from(addr: SocketAddrV6) -> Self {
        Self(Form::Socket(addr.into()))
    }
}

impl From<(IpAddr, u16)> for Address {
    fn from((ip, port): (IpAddr, u16)) -> Self {
        Self(Form::Socket(SocketAddr::new(ip, port)))
    }
}

impl From<(Ipv4Addr, u16)> for Address {
    fn from((ip, port): (Ipv4Addr, u16)) -> Self {
        Self(Form::Socket(SocketAddr::new(ip.into(), port)))
    }
}

impl From<(Ipv6Addr, u16)> for Address {
    fn from((ip, port): (Ipv6Addr, u16)) -> Self {
        Self(Form::Socket(SocketAddr::new(ip.into(), port)))
    }
}

impl From<(&str, u16)> for Address {
    fn from((host, port): (&str, u16)) -> Self {
        Self(Form::Host { host: host.to_owned(), port })
    }
}

impl From<(String, u16)> for Address {
    fn from((host, port): (String, u16)) -> Self {
        Self(Form::Host { host, port })
    }
}

impl From<&str> for Address {
    fn from(text: &str) -> Self {
        Self(Form::Text(text.to_owned()))
    }
}

impl From<String> for Address {
    fn from(text: String) -> Self {
        Self(Form::Text(text))
    }
}

impl From<&String> for Address {
    fn from(text: &String) -> Self {
        Self(Form::Text(text.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reason(address: impl Into<Address>) -> String {
        address.into().target().unwrap_err().to_string()
    }

    #[test]
    fn literal_addresses_are_taken_as_they_are() {
        let socket = |text: &str| Target::Socket(text.parse().unwrap());
        for (written, understood) in [
            ("127.0.0.1:7471", "127.0.0.1:7471"),
            ("[::1]:7471", "[::1]:7471"),
            ("[fe80::1%3]:7471", "[fe80::1%3]:7471"),
            ("0.0.0.0:0", "0.0.0.0:0"),
        ] {
            assert_eq!(Address::from(written).target().unwrap(), socket(understood));
        }
        assert_eq!(Address::from(("::1", 9)).target().unwrap(), socket("[::1]:9"));
        assert_eq!(Address::from(("[::1]", 9)).target().unwrap(), socket("[::1]:9"));
        assert_eq!(
            Address::from((Ipv4Addr::LOCALHOST, 9)).target().unwrap(),
            socket("127.0.0.1:9")
        );
    }

    #[test]
    fn names_wait_for_the_resolver() {
        let name = |host: &str, port| Target::Name { host: host.to_owned(), port };
        assert_eq!(Address::from("a.example:1").target().unwrap(), name("a.example", 1));
        // The interface of a scope may be a name too, which only the resolver can look up (FC-053).
        assert_eq!(Address::from("[fe80::1%eth0]:1").target().unwrap(), name("fe80::1%eth0", 1));
        assert_eq!(name("fe80::1%eth0", 1).to_string(), "[fe80::1%eth0]:1");
    }

    #[test]
    fn what_cannot_be_an_address_says_why() {
        assert!(reason("localhost").contains("port is missing"));
        assert!(reason("localhost:http").contains("no number"));
        assert!(reason("localhost:65536").contains("no number"));
        assert!(reason(":7471").contains("host is missing"));
        assert!(reason("::1:7471").contains("needs brackets"));
        assert!(reason(("", 7471)).contains("host is missing"));
    }

    #[test]
    fn fc_053_a_link_local_address_without_interface_is_refused() {
        let bare = Address::from("[fe80::1]:7471");
        assert!(bare.resolve_blocking().unwrap_err().to_string().contains("needs its interface"));
        let scoped = Address::from("[fe80::1%1]:7471");
        assert_eq!(scoped.resolve_blocking().unwrap(), ["[fe80::1%1]:7471".parse().unwrap()]);
        let mapped: Vec<SocketAddr> =
            vec!["[fe80::1]:1".parse().unwrap(), "192.0.2.1:1".parse().unwrap()];
        assert_eq!(usable(mapped).unwrap(), ["192.0.2.1:1".parse().unwrap()]);
    }

    #[test]
    fn port_zero_is_for_listeners() {
        assert!(Address::from("127.0.0.1:0").resolve_blocking().is_ok());
        let target = Address::from("127.0.0.1:0").target().unwrap();
        assert!(target.resolve().unwrap_err().to_string().contains("port 0"));
    }
}
