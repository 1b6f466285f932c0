//! Who may ask: names of the host, origins of forms, tokens and cookies.
//!
//! Owns these judgements, and the sessions of browsers. Does no I/O; the clock and random bytes are
//! arguments.
//!
//! A page that a browser shows can send requests to any address that the browser reaches. So a
//! request over TCP must name this server in `Host` (another site's name may have been rebound to
//! its address), a form must come from a page of this server (`Origin`), and each request bears the
//! token or the cookie of a session that the token began. A form that changes something also bears a
//! key, which only a page of this server can have told its sender.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use http::header::{AUTHORIZATION, COOKIE, HOST, HeaderMap, HeaderValue, ORIGIN};
use parking_lot::Mutex;
use zeroize::Zeroizing;

/// The fewest characters of a token.
pub const TOKEN_CHARS_MIN: usize = 20;

/// How long a browser need not show the token again.
const SESSION: Duration = Duration::from_secs(12 * 3600);

/// Sessions at the same time; a new one beyond that ends the oldest.
const SESSIONS_MAX: usize = 64;

/// What the names of cookies begin with.
const COOKIE_PREFIX: &str = "bkfs_session_";

/// Who may ask.
#[derive(Debug)]
pub struct Guard {
    /// Names of this server other than addresses and `localhost`, in lower case.
    names: Vec<String>,
    /// None for a Unix socket, whose permissions decide.
    token: Option<TokenGuard>,
    /// Makes the keys of forms.
    form_key: [u8; 32],
}

/// Guards a server that listens on TCP.
#[derive(Debug)]
pub struct TokenGuard {
    /// The hash of the token, under a key of this process.
    token: blake3::Hash,
    key: [u8; 32],
    /// Name of the cookie. Browsers keep one cookie of a name for all ports of a host.
    cookie_name: String,
    sessions: Mutex<Vec<BrowserSession>>,
}

#[derive(Debug)]
struct BrowserSession {
    cookie: blake3::Hash,
    ends: Instant,
}

/// Why a request is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Denial {
    /// `Host` is missing, or has another name.
    #[error("this server does not have the name that the request gives it: see --host")]
    Host,
    /// A form was not sent by a page of this server.
    #[error("the form was not sent by a page of this server")]
    Origin,
    /// Neither token nor session.
    #[error("the token is missing or wrong")]
    Token,
    /// The key of a form is missing, or that of another session.
    #[error("the form is too old, or was not made for this session: open its page again")]
    FormKey,
}

impl Guard {
    /// Returns a guard. `names` are those of `--host`, `form_key` random bytes.
    pub fn new(names: &[String], token: Option<TokenGuard>, form_key: [u8; 32]) -> Self {
        Self {
            names: names.iter().map(|name| name.to_ascii_lowercase()).collect(),
            token,
            form_key,
        }
    }

    /// Returns the judge of tokens; none for a Unix socket.
    pub fn token(&self) -> Option<&TokenGuard> {
        self.token.as_ref()
    }

    /// Judges from where a request comes. `is_form` says that it may change something.
    ///
    /// # Errors
    /// [`Denial::Host`] or [`Denial::Origin`].
    pub fn check_origin(&self, headers: &HeaderMap, is_form: bool) -> Result<(), Denial> {
        let host = one(headers, HOST.as_str()).ok_or(Denial::Host)?;
        // Through a tunnel a browser reaches a Unix socket as well.
        if !self.is_own_name(host) {
            return Err(Denial::Host);
        }
        let origin = one(headers, ORIGIN.as_str());
        let is_ours = origin
            .and_then(|origin| origin.split_once("://"))
            .is_some_and(|(_, origin)| origin.eq_ignore_ascii_case(host));
        match is_form && !is_ours {
            true => Err(Denial::Origin),
            false => Ok(()),
        }
    }

    /// Judges whether a request bears the token, or the cookie of a session.
    ///
    /// # Errors
    /// [`Denial::Token`].
    pub fn check_token(&self, headers: &HeaderMap, now: Instant) -> Result<(), Denial> {
        let Some(guard) = &self.token else {
            return Ok(());
        };
        let bearer = one(headers, AUTHORIZATION.as_str()).and_then(bearer);
        let is_known = bearer.is_some_and(|token| guard.is_token(token))
            || guard.session(headers, now).is_some();
        is_known.then_some(()).ok_or(Denial::Token)
    }

    /// Returns the key that the forms of a browser bear, to be sent back with them. Each session has
    /// its own.
    pub fn form_key(&self, headers: &HeaderMap, now: Instant) -> String {
        self.form_hash(headers, now).to_hex().to_string()
    }

    /// Judges the key of a form that changes something.
    ///
    /// # Errors
    /// [`Denial::FormKey`].
    pub fn check_form(
        &self,
        headers: &HeaderMap,
        key: Option<&str>,
        now: Instant,
    ) -> Result<(), Denial> {
        let key = key.and_then(|key| blake3::Hash::from_hex(key).ok());
        let is_right = key.is_some_and(|key| key == self.form_hash(headers, now));
        is_right.then_some(()).ok_or(Denial::FormKey)
    }

    fn form_hash(&self, headers: &HeaderMap, now: Instant) -> blake3::Hash {
        let token = self.token.as_ref();
        let session = token.and_then(|guard| guard.session(headers, now));
        let session = session.as_ref().map_or(&[][..], |hash| hash.as_bytes());
        blake3::keyed_hash(&self.form_key, session)
    }

    /// Returns true for an address, which no other site can have as its name, and for own names.
    fn is_own_name(&self, host: &str) -> bool {
        let name = without_port(host).to_ascii_lowercase();
        let address = name.trim_start_matches('[').trim_end_matches(']');
        address.parse::<IpAddr>().is_ok() || name == "localhost" || self.names.contains(&name)
    }
}

impl TokenGuard {
    /// Returns a guard for a token. `key` and later cookies are random bytes.
    pub fn new(token: &Zeroizing<String>, key: [u8; 32]) -> Self {
        let own = blake3::derive_key("bkfs serve: name of the cookie", &key);
        Self {
            token: blake3::keyed_hash(&key, token.as_bytes()),
            key,
            cookie_name: format!("{COOKIE_PREFIX}{}", hex::encode(&own[..4])),
            sessions: Mutex::default(),
        }
    }

    /// Returns true for the token. The comparison takes the same time for every wrong one.
    pub fn is_token(&self, token: &str) -> bool {
        blake3::keyed_hash(&self.key, token.as_bytes()) == self.token
    }

    /// Begins a session of a browser that has shown the token. Returns the value of `Set-Cookie`.
    /// `headers` are those of the form.
    pub fn begin(&self, headers: &HeaderMap, random: [u8; 32], now: Instant) -> HeaderValue {
        let cookie = hex::encode(random);
        let session = BrowserSession {
            cookie: self.hash(&cookie),
            ends: now + SESSION,
        };
        let mut sessions = self.sessions.lock();
        sessions.retain(|session| session.ends > now);
        if sessions.len() >= SESSIONS_MAX {
            sessions.remove(0);
        }
        sessions.push(session);
        self.set_cookie(headers, &cookie, SESSION)
    }

    /// Ends the session of a request. Returns the value of `Set-Cookie`.
    pub fn end(&self, headers: &HeaderMap) -> HeaderValue {
        let mut sessions = self.sessions.lock();
        for cookie in self.cookies(headers) {
            sessions.retain(|session| session.cookie != cookie);
        }
        self.set_cookie(headers, "", Duration::ZERO)
    }

    fn set_cookie(&self, headers: &HeaderMap, value: &str, age: Duration) -> HeaderValue {
        // A proxy may speak TLS for this server. The browser knows.
        let origin = one(headers, ORIGIN.as_str());
        let is_tls = origin.is_some_and(|origin| origin.starts_with("https://"));
        let secure = if is_tls { "; Secure" } else { "" };
        let (name, age) = (&self.cookie_name, age.as_secs());
        let text =
            format!("{name}={value}; Path=/; Max-Age={age}; HttpOnly; SameSite=Strict{secure}");
        HeaderValue::from_str(&text).unwrap_or(HeaderValue::from_static(""))
    }

    /// Returns the hash of the cookie of the session that a request belongs to.
    fn session(&self, headers: &HeaderMap, now: Instant) -> Option<blake3::Hash> {
        let sessions = self.sessions.lock();
        let is_live = |cookie: &blake3::Hash| {
            let mut live = sessions.iter().filter(|session| session.ends > now);
            live.any(|session| session.cookie == *cookie)
        };
        self.cookies(headers).find(is_live)
    }

    /// Returns the hashes of the cookies of this server.
    fn cookies<'a>(&'a self, headers: &'a HeaderMap) -> impl Iterator<Item = blake3::Hash> + 'a {
        let values = headers.get_all(COOKIE).iter();
        let pairs = values.filter_map(|value| value.to_str().ok());
        let pairs = pairs.flat_map(|text| text.split(';'));
        pairs.filter_map(|pair| {
            let (name, value) = pair.trim().split_once('=')?;
            (name == self.cookie_name).then(|| self.hash(value))
        })
    }

    fn hash(&self, cookie: &str) -> blake3::Hash {
        blake3::keyed_hash(&self.key, cookie.as_bytes())
    }
}

/// Returns the value of a header that stands once.
fn one<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let mut values = headers.get_all(name).iter();
    let value = values.next()?;
    match values.next() {
        None => value.to_str().ok(),
        Some(_) => None,
    }
}

fn bearer(value: &str) -> Option<&str> {
    let (scheme, token) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => match name {
            // An address of version 6 has colons of its own, and brackets around it.
            name if name.contains(':') && !name.ends_with(']') => host,
            name => name,
        },
        _ => host,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: &str = "a token of enough length";

    fn guard() -> Guard {
        let token = Zeroizing::new(TOKEN.to_owned());
        let names = ["Backup.example.net".to_owned()];
        Guard::new(&names, Some(TokenGuard::new(&token, [7; 32])), [6; 32])
    }

    fn token_guard(guard: &Guard) -> &TokenGuard {
        guard.token().expect("a guard with a token")
    }

    /// Returns the cookie that a browser sends from now on.
    fn begin(guard: &Guard, random: u8, now: Instant) -> String {
        let set = token_guard(guard).begin(&HeaderMap::new(), [random; 32], now);
        set.to_str().unwrap().split(';').next().unwrap().to_owned()
    }

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, HeaderValue::from_str(value).unwrap());
        }
        headers
    }

    #[test]
    fn a_name_that_was_rebound_is_refused() {
        let of = |guard: &Guard, host: &str| guard.check_origin(&headers(&[("host", host)]), false);
        let check = |host: &str| of(&guard(), host);
        for own in [
            "127.0.0.1:8080",
            "127.0.0.1",
            "[::1]:8080",
            "[::1]",
            "localhost:1",
            "backup.EXAMPLE.net",
            "backup.example.net:443",
        ] {
            assert_eq!(check(own), Ok(()), "{own}");
        }
        for other in [
            "attacker.example",
            "backup.example.net.attacker.example",
            "127.0.0.1.attacker.example:8080",
            "",
            "localhost.attacker.example",
        ] {
            assert_eq!(check(other), Err(Denial::Host), "{other}");
            let socket = Guard::new(&[], None, [6; 32]);
            assert_eq!(of(&socket, other), Err(Denial::Host), "{other}");
        }
        let twice = headers(&[("host", "localhost"), ("host", "attacker.example")]);
        assert_eq!(guard().check_origin(&twice, false), Err(Denial::Host));
        let none = HeaderMap::new();
        assert_eq!(guard().check_origin(&none, false), Err(Denial::Host));
    }

    #[test]
    fn a_form_comes_from_a_page_of_this_server() {
        let check = |guard: &Guard, origin: Option<&str>| {
            let mut all = headers(&[("host", "localhost:80")]);
            if let Some(origin) = origin {
                all.append(ORIGIN, HeaderValue::from_str(origin).unwrap());
            }
            guard.check_origin(&all, true)
        };
        for guard in [guard(), Guard::new(&[], None, [6; 32])] {
            assert_eq!(check(&guard, Some("http://localhost:80")), Ok(()));
            for other in [
                None,
                Some("null"),
                Some("http://localhost:81"),
                Some("http://localhost:80.attacker.example"),
                Some("http://attacker.example"),
            ] {
                assert_eq!(check(&guard, other), Err(Denial::Origin), "{other:?}");
            }
        }
    }

    #[test]
    fn the_token_and_its_sessions_are_let_in() {
        let guard = guard();
        let now = Instant::now();
        let check = |pairs: &[(&'static str, &str)], now| guard.check_token(&headers(pairs), now);
        let wrong = "Bearer a token of enough lengtH";
        let right = format!("Bearer {TOKEN}");
        assert_eq!(check(&[], now), Err(Denial::Token));
        assert_eq!(check(&[("authorization", wrong)], now), Err(Denial::Token));
        assert_eq!(check(&[("authorization", &right)], now), Ok(()));
        let set = token_guard(&guard).begin(&HeaderMap::new(), [8; 32], now);
        let set = set.to_str().unwrap();
        assert!(set.contains("HttpOnly") && set.contains("SameSite=Strict"));
        assert!(!set.contains("Secure"));
        let tls = headers(&[("origin", "https://backup.example.net")]);
        let set = token_guard(&guard).begin(&tls, [8; 32], now);
        assert!(set.to_str().unwrap().contains("; Secure"));
        let cookie = &begin(&guard, 9, now);
        let both = format!("other=1; {cookie}");
        assert_eq!(check(&[("cookie", &both)], now), Ok(()));
        assert_eq!(
            check(&[("cookie", &both)], now + SESSION),
            Err(Denial::Token)
        );
        assert_eq!(
            check(&[("cookie", "bkfs_session=")], now),
            Err(Denial::Token)
        );
        token_guard(&guard).end(&headers(&[("cookie", cookie)]));
        assert_eq!(check(&[("cookie", cookie)], now), Err(Denial::Token));
    }

    #[test]
    fn a_form_bears_the_key_of_its_own_session() {
        let guard = guard();
        let now = Instant::now();
        let mine = headers(&[("cookie", &begin(&guard, 1, now))]);
        let other = headers(&[("cookie", &begin(&guard, 2, now))]);
        let key = guard.form_key(&mine, now);
        assert_eq!(guard.check_form(&mine, Some(&key), now), Ok(()));
        for (headers, key) in [
            (&other, Some(key.as_str())),
            (&HeaderMap::new(), Some(&key)),
            (&mine, None),
            (&mine, Some("")),
            (&mine, Some(&key[1..])),
            (&mine, Some(&guard.form_key(&HeaderMap::new(), now))),
        ] {
            let checked = guard.check_form(headers, key, now);
            assert_eq!(checked, Err(Denial::FormKey), "{key:?}");
        }
        // A server that begins again has other keys.
        let again = Guard::new(&[], None, [5; 32]);
        let before = Guard::new(&[], None, [6; 32]);
        let key = before.form_key(&HeaderMap::new(), now);
        let checked = again.check_form(&HeaderMap::new(), Some(&key), now);
        assert_eq!(checked, Err(Denial::FormKey));
        assert_eq!(
            before.check_form(&HeaderMap::new(), Some(&key), now),
            Ok(())
        );
    }

    #[test]
    fn the_oldest_of_too_many_sessions_ends() {
        let guard = guard();
        let now = Instant::now();
        let mut all = Vec::new();
        for number in 0..=SESSIONS_MAX as u8 {
            all.push(begin(&guard, number, now));
        }
        let check = |cookie: &str| guard.check_token(&headers(&[("cookie", cookie)]), now);
        assert_eq!(check(&all[0]), Err(Denial::Token));
        assert_eq!(check(&all[1]), Ok(()));
        assert_eq!(check(&all[SESSIONS_MAX]), Ok(()));
    }
}
