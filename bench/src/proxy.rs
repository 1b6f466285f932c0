//! A proxy that simulates a distant store: it forwards TCP and delays each request.
//!
//! Owns: connections and the delay. Its only knowledge of HTTP: a client that sends after the
//! server has sent begins a request.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::Outcome;

/// A listening proxy, which lasts as long as the process.
#[derive(Clone, Copy, Debug)]
pub struct Proxy {
    /// Address on which it listens.
    pub address: SocketAddr,
}

impl Proxy {
    /// Starts a proxy that forwards to `server`, and delays the start of each request by `delay`.
    ///
    /// # Errors
    /// The I/O error of listening on a free port.
    pub fn start(server: SocketAddr, delay: Duration) -> Outcome<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        let address = listener.local_addr()?;
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                thread::spawn(move || serve(&client, server, delay));
            }
        });
        Ok(Self { address })
    }
}

fn serve(client: &TcpStream, server: SocketAddr, delay: Duration) {
    let Ok(server) = TcpStream::connect(server) else {
        return;
    };
    // Without it, the small parts of a request would wait for acknowledgements.
    let _ = client.set_nodelay(true);
    let _ = server.set_nodelay(true);
    // True if the server has sent last: the next bytes of the client begin a request.
    let answered = Arc::new(AtomicBool::new(true));
    let (Ok(from), Ok(to)) = (server.try_clone(), client.try_clone()) else {
        return;
    };
    let heard = answered.clone();
    let back = thread::spawn(move || {
        pass(&from, &to, || heard.store(true, Ordering::Relaxed));
    });
    pass(client, &server, || {
        if answered.swap(false, Ordering::Relaxed) {
            thread::sleep(delay);
        }
    });
    // A panic of that thread ends the connection, like its normal end.
    let _ = back.join();
}

fn pass(mut from: &TcpStream, mut to: &TcpStream, mut before: impl FnMut()) {
    let mut buffer = vec![0; 256 * 1024];
    loop {
        match from.read(&mut buffer) {
            Ok(0) => break,
            Ok(length) => {
                before();
                if to.write_all(&buffer[..length]).is_err() {
                    break;
                }
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => break,
        }
    }
    // The other side may be gone already.
    let _ = to.shutdown(Shutdown::Write);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn each_request_is_held_back_and_passed_on() {
        let server = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let address = server.local_addr().unwrap();
        thread::spawn(move || {
            let (mut client, _) = server.accept().unwrap();
            let mut word = [0; 4];
            while client.read_exact(&mut word).is_ok() {
                word.reverse();
                client.write_all(&word).unwrap();
            }
        });
        let delay = Duration::from_millis(30);
        let proxy = Proxy::start(address, delay).unwrap();
        let mut client = TcpStream::connect(proxy.address).unwrap();
        let began = Instant::now();
        for _ in 0..3 {
            client.write_all(b"abcd").unwrap();
            let mut word = [0; 4];
            client.read_exact(&mut word).unwrap();
            assert_eq!(&word, b"dcba");
        }
        assert!(began.elapsed() >= 3 * delay);
    }
}
