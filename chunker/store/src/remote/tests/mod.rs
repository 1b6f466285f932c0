//! Tests of the S3 client against a scripted server.

mod answers;
mod patience;
mod region;
mod requests;
mod server;

use std::sync::Mutex;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, sleep};

use super::*;
use crate::{Notice, StoreErrorKind as Kind, TOLD_AFTER};
