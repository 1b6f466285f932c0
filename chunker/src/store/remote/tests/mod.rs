//! The client of S3 against a server that says and does what a script tells it.

mod answers;
mod patience;
mod requests;
mod server;

use std::sync::Mutex;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, sleep};

use super::*;
use crate::store::{Notice, StoreErrorKind as Kind};
