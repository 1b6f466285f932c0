//! `bkfs init URL`

use serde_json::json;
use zeroize::Zeroizing;

use crate::cli::access::{Access, explain};
use crate::cli::output::{Failure, Output};
use crate::cli::{Global, block_on};
use crate::repository::{self, Creation};

/// Create a repository
///
/// Refuses a store whose conditional writes are wrong. Without --no-encryption, asks for a password twice: without it nothing can be restored, by
/// anybody.
#[derive(Debug, clap::Args)]
pub struct Init {
    /// Where: s3://bucket/prefix, gs://…, az://…, or a directory
    url: String,
    /// No password: contents are readable by whoever can read the bucket, and verified by hash
    #[arg(long)]
    no_encryption: bool,
}

pub fn run(command: Init, global: &Global, output: &Output) -> Result<(), Failure> {
    block_on(async {
        let access = Access::of_command(&command.url, global)?;
        create(&access, command.no_encryption, output).await
    })
}

async fn create(access: &Access, no_encryption: bool, output: &Output) -> Result<(), Failure> {
    let password = if no_encryption {
        None
    } else {
        Some(access.password.new_password()?)
    };
    let password = password.map(|password| Zeroizing::new(password.as_bytes().to_vec()));
    let creation = Creation {
        url: access.url.clone(),
        store: access.store.clone(),
        password,
    };
    let id = repository::create(creation)
        .await
        .map_err(|error| explain(error, &access.url))?;
    let sealed = !no_encryption;
    let answer = json!({ "repository": access.url.to_string(), "id": id, "encrypted": sealed });
    output.result(&answer, || {
        let how = if sealed {
            "sealed under the password"
        } else {
            "NOT encrypted"
        };
        format!("created repository {} ({how})", access.url)
    })
}

/// Creates the repository unless there is one.
pub async fn create_if_absent(
    access: &Access,
    no_encryption: bool,
    output: &Output,
) -> Result<(), Failure> {
    if repository::exists(&access.url, &access.store)
        .await
        .map_err(|error| explain(error, &access.url))?
    {
        return Ok(());
    }
    create(access, no_encryption, output).await
}
