//! The region of a bucket of Amazon's, where no setting names it.

use std::time::Duration;

use http::{Method, StatusCode};
use object_store::ClientOptions;
use object_store::client::{
    ClientConfigKey, HttpConnector, HttpError, HttpRequest, HttpRequestBody,
};

use super::answer::Fault;
use super::transport::Connector;

/// How long the request for a bucket's region may take.
const TIMEOUT: Duration = Duration::from_secs(3);

/// Asks Amazon for the region of a bucket. The request is not signed: Amazon names the region even
/// where it refuses the request. Its certificates do not cover a bucket with a dot as a host.
pub(super) async fn region_of_bucket(
    bucket: &str,
    connector: &Connector,
) -> Result<String, String> {
    let address = match bucket.contains('.') {
        true => format!("https://s3.amazonaws.com/{bucket}"),
        false => format!("https://{bucket}.s3.amazonaws.com"),
    };
    match tokio::time::timeout(TIMEOUT, named_at(&address, connector)).await {
        Ok(answer) => answer,
        Err(_) => Err(format!("no answer for {} s", TIMEOUT.as_secs())),
    }
}

/// Returns the region that the answer from an address names.
pub(super) async fn named_at(address: &str, connector: &Connector) -> Result<String, String> {
    let mut options = ClientOptions::new();
    if address.starts_with("http:") {
        options = options.with_config(ClientConfigKey::AllowHttp, "true");
    }
    let client = connector
        .connect(&options)
        .map_err(|error| error.to_string())?;
    let mut request = HttpRequest::new(HttpRequestBody::empty());
    *request.method_mut() = Method::HEAD;
    *request.uri_mut() = address
        .parse()
        .map_err(|error| format!("{address}: {error}"))?;
    let region = match client.execute(request).await {
        Ok(answer) => answer
            .headers()
            .get("x-amz-bucket-region")
            .and_then(|region| region.to_str().ok())
            .map(str::to_owned),
        Err(error) => in_refusal(&error)?,
    };
    region
        .filter(|region| !region.is_empty())
        .ok_or_else(|| format!("{address} names no region"))
}

/// Returns the region that a refusal names.
fn in_refusal(error: &HttpError) -> Result<Option<String>, String> {
    let source = std::error::Error::source(error);
    match source.and_then(|fault| fault.downcast_ref::<Fault>()) {
        Some(Fault::Answer(answer)) if answer.status == StatusCode::NOT_FOUND => {
            Err(format!("{} has no such bucket", answer.host))
        }
        Some(Fault::Answer(answer)) => Ok(answer.region.clone()),
        Some(fault) => Err(fault.to_string()),
        None => Err(error.to_string()),
    }
}
