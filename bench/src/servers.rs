//! Servers for the suites: an object store on this machine.
//!
//! Owns: starting and ending them. They listen on 127.0.0.1 only.

use std::fs;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::Outcome;
use crate::measure;

/// Name and secret of the store's only user.
pub const USER: (&str, &str) = ("bkfsbench", "bkfsbenchsecret");

/// Name of the bucket.
pub const BUCKET: &str = "bench";

/// A MinIO server.
pub struct Minio {
    child: Child,
    /// Address on which it listens.
    pub address: SocketAddr,
}

impl Minio {
    /// Starts a server with its data in `data`, and makes the bucket.
    ///
    /// # Errors
    /// The I/O error of starting it, or a message if it does not answer within 60 s.
    pub fn start(binary: &Path, data: &Path) -> Outcome<Self> {
        // MinIO takes a top directory for a bucket.
        fs::create_dir_all(data.join(BUCKET))?;
        let address = TcpListener::bind(("127.0.0.1", 0))?.local_addr()?;
        let child = Command::new(binary)
            .args(["server", "--quiet", "--address", &address.to_string()])
            .arg(data)
            .env("MINIO_ROOT_USER", USER.0)
            .env("MINIO_ROOT_PASSWORD", USER.1)
            .env("MINIO_BROWSER", "off")
            .env("MINIO_UPDATE", "off")
            .env("HOME", data)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        let server = Self { child, address };
        let deadline = Instant::now() + Duration::from_secs(60);
        while TcpStream::connect(address).is_err() || server.create_bucket().is_err() {
            if Instant::now() > deadline {
                return Err("MinIO does not answer".into());
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        Ok(server)
    }

    /// Makes the bucket. Only some versions take a directory for a bucket; status 409, the bucket
    /// exists, counts as success.
    fn create_bucket(&self) -> Outcome<()> {
        let url = format!("{}/{BUCKET}", endpoint(self.address));
        let line = format!(
            "code=$(curl -s -m 10 -o /dev/null -w '%{{http_code}}' -X PUT -H \
             \"x-amz-content-sha256: $(printf '' | sha256sum | cut -d' ' -f1)\" --aws-sigv4 \
             aws:amz:us-east-1:s3 --user {}:{} {url}); [ $code = 200 ] || [ $code = 409 ]",
            USER.0, USER.1
        );
        measure::shell(&line).map(drop)
    }

    /// Returns the processor seconds that the server has used.
    pub fn processor_s(&self) -> Option<f64> {
        measure::processor_s(self.child.id())
    }
}

impl Drop for Minio {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the URL of a store's address.
pub fn endpoint(address: SocketAddr) -> String {
    format!("http://{address}")
}

/// Returns the environment variables that S3 clients read.
pub fn s3_environment(address: SocketAddr) -> [(&'static str, String); 4] {
    [
        ("AWS_ACCESS_KEY_ID", USER.0.to_owned()),
        ("AWS_SECRET_ACCESS_KEY", USER.1.to_owned()),
        ("AWS_REGION", "us-east-1".to_owned()),
        ("AWS_ENDPOINT_URL", endpoint(address)),
    ]
}

/// Returns the path of a MinIO that a package, or an earlier run of the tests, has installed.
pub fn find_minio() -> Option<PathBuf> {
    crate::peers::find("minio")
}
