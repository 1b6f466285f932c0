//! The addresses of names that need no DNS server: those of hosts(5), and localhost.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Returns the addresses of a name in a file of hosts(5), in the file's order. A name below
/// `localhost` that the file lacks is this machine (RFC 6761).
pub(super) fn addresses_in(file: &str, name: &str) -> Vec<IpAddr> {
    let name = name.strip_suffix('.').unwrap_or(name);
    let mut found = Vec::new();
    for line in file.lines() {
        let line = line.split('#').next().unwrap_or_default();
        let mut words = line.split_ascii_whitespace();
        let Some(Ok(address)) = words.next().map(str::parse) else {
            continue;
        };
        if words.any(|word| word.eq_ignore_ascii_case(name)) && !found.contains(&address) {
            found.push(address);
        }
    }
    if found.is_empty() && is_localhost(name) {
        found.extend([
            IpAddr::V4(Ipv4Addr::LOCALHOST),
            IpAddr::V6(Ipv6Addr::LOCALHOST),
        ]);
    }
    found
}

fn is_localhost(name: &str) -> bool {
    let last = name.rsplit('.').next().unwrap_or_default();
    last.eq_ignore_ascii_case("localhost")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(file: &str, name: &str) -> String {
        let found = addresses_in(file, name);
        let shown: Vec<String> = found.iter().map(IpAddr::to_string).collect();
        shown.join(" ")
    }

    #[test]
    fn names_of_a_hosts_file_have_its_addresses() {
        let file = "# 10.0.0.9 minio\n\
                    10.0.0.1 minio.corp.test minio # 10.0.0.2 other\n\
                    \n\
                    \tfd00::1\tMinio minio\r\n\
                    10.0.0.1 minio\n\
                    minio 10.0.0.3\n\
                    fe80::1%eth0 minio\n\
                    10.0.0.4\n\
                    10.0.0.5 localhost";
        for (name, addresses) in [
            ("minio", "10.0.0.1 fd00::1"),
            ("MINIO.", "10.0.0.1 fd00::1"),
            ("minio.corp.test", "10.0.0.1"),
            ("minio.corp", ""),
            ("corp.test", ""),
            ("other", ""),
            ("", ""),
            ("localhost", "10.0.0.5"),
        ] {
            assert_eq!(shown(file, name), addresses, "{name}");
        }
    }

    #[test]
    fn localhost_needs_no_file() {
        for name in ["localhost", "LocalHost.", "minio.localhost"] {
            assert_eq!(shown("10.0.0.1 minio", name), "127.0.0.1 ::1", "{name}");
        }
        for name in ["localhost.test", "notlocalhost", "local.host"] {
            assert_eq!(shown("10.0.0.1 minio", name), "", "{name}");
        }
    }
}
