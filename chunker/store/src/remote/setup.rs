//! Configuration of the services' clients.
//!
//! The settings come from the environment, the configuration file, and the options, in this order.
//! A later source overrides an earlier one.

use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::{BackoffConfig, ClientConfigKey, RetryConfig};
use url::{Host, Url};

use super::contact::Contact;
use super::locker::Locker;
use super::profile::Profiles;
use super::region::region_of_bucket;
use super::sending::Patience;
use super::service::{Flavor, Service};
use super::steady::Steady;
use super::transport::Connector;
use super::trust::lacks_authorities;
use crate::{Operation, StoreError, StoreErrorKind, StoreOptions};

/// A configured service.
pub(super) struct Setup {
    pub service: Arc<dyn Service>,
    pub flavor: Flavor,
    /// The client for the calls that `object_store` does not have. Present only for S3.
    pub locker: Option<Locker>,
    /// The server's address, if it is not the cloud's own.
    pub endpoint: Option<String>,
}

/// The region of a bucket without a configured region, as in `object_store`.
const REGION_DEFAULT: &str = "us-east-1";

/// Why no server can be reached by https from a machine without a bundle of certificates, and the
/// next step.
const NO_AUTHORITIES: &str = "this machine has no certificates of authorities, so no server can \
    prove by https who it is: install the package ca-certificates, or set SSL_CERT_FILE to a file \
    of such certificates";

fn invalid(message: String) -> StoreError {
    StoreError::new(StoreErrorKind::Invalid, Operation::Open, "", message)
}

fn refused(error: object_store::Error) -> StoreError {
    if lacks_authorities(&error) {
        return invalid(NO_AUTHORITIES.to_owned());
    }
    invalid(format!("the settings of the store make no sense: {error}"))
}

/// Returns a configuration without retries. `object_store` would send a conditional write a second
/// time, and report the refusal of the second request as the outcome of the first.
fn no_retries() -> RetryConfig {
    RetryConfig {
        backoff: BackoffConfig::default(),
        max_retries: 0,
        retry_timeout: Duration::ZERO,
    }
}

pub(super) fn connector(options: &StoreOptions, contact: &Arc<Contact>) -> Connector {
    Connector {
        connect_timeout: options.connect_timeout,
        patience: Patience {
            stall: options.stall_timeout,
            drain: options.drain_timeout,
        },
        contact: Arc::clone(contact),
        made: Arc::default(),
        clients: Arc::default(),
    }
}

/// Returns the settings of the options as keys of a builder. Settings for other services are
/// skipped.
fn settings<K: FromStr>(
    options: &StoreOptions,
    belongs: &'static [&'static str],
) -> Result<Vec<(K, String)>, StoreError> {
    let mut found = Vec::new();
    for (name, value) in &options.settings {
        let name = name.to_ascii_lowercase();
        if !belongs.iter().any(|prefix| name.starts_with(prefix)) {
            continue;
        }
        let key = K::from_str(&name)
            .map_err(|_| invalid(format!("there is no setting {name} for this store")))?;
        found.push((key, value.clone()));
    }
    Ok(found)
}

fn is_plain_http(endpoint: &str) -> bool {
    Url::parse(endpoint).is_ok_and(|address| address.scheme() == "http")
}

/// Returns whether data on its way to this endpoint is protected from changes: by TLS, or because
/// it stays on this machine.
fn is_guarded(endpoint: &str) -> bool {
    !is_plain_http(endpoint) || is_on_this_machine(endpoint)
}

fn is_on_this_machine(endpoint: &str) -> bool {
    match Url::parse(endpoint).as_ref().map(Url::host) {
        Ok(Some(Host::Domain(name))) => name == "localhost",
        Ok(Some(Host::Ipv4(address))) => address.is_loopback(),
        Ok(Some(Host::Ipv6(address))) => address.is_loopback(),
        _ => false,
    }
}

fn check_endpoint(endpoint: &str) -> Result<(), StoreError> {
    let address = Url::parse(endpoint).ok();
    match address {
        Some(address) if matches!(address.scheme(), "http" | "https") && address.has_host() => {
            Ok(())
        }
        _ => Err(invalid(format!(
            "the endpoint {endpoint:?} is no address: it looks like https://host:port"
        ))),
    }
}

pub(super) async fn s3(
    bucket: &str,
    options: &StoreOptions,
    contact: &Arc<Contact>,
) -> Result<Setup, StoreError> {
    use AmazonS3ConfigKey as Key;
    let mut builder = match options.use_environment {
        true => AmazonS3Builder::from_env(),
        false => AmazonS3Builder::new(),
    };
    let mut is_chosen = false;
    for (key, value) in settings::<Key>(options, &["aws_"])? {
        is_chosen |= key == Key::UnsignedPayload;
        builder = builder.with_config(key, value);
    }
    if let Some(endpoint) = &options.endpoint {
        // Both are set: an endpoint for S3 alone from the environment would take precedence over
        // the general one.
        builder = builder
            .with_config(Key::S3Endpoint, endpoint)
            .with_endpoint(endpoint);
    }
    if let Some(region) = &options.region {
        builder = builder.with_region(region);
    }
    if options.use_environment && !has_credentials(&builder) {
        builder = with_profile(builder)?;
    }
    let endpoint = [Key::S3Endpoint, Key::Endpoint]
        .iter()
        .find_map(|key| builder.get_config_value(key))
        .filter(|endpoint| !endpoint.is_empty());
    builder = match &endpoint {
        Some(endpoint) => at_endpoint(builder, bucket, endpoint)?,
        None => at_amazon(builder, bucket, &connector(options, contact)).await?,
    };
    if endpoint.as_deref().is_some_and(is_plain_http) {
        builder = builder.with_allow_http(true);
    }
    if !is_chosen && endpoint.as_deref().is_none_or(is_guarded) {
        // On such a connection another hash of each body, here and at the server, gains nothing.
        builder = builder.with_unsigned_payload(true);
    }
    let region = region_of(&builder);
    let connector = connector(options, contact);
    let made = Arc::clone(&connector.made);
    let builder = builder
        .with_bucket_name(bucket)
        // Every server understands the request that deletes one object. Some do not understand the
        // request that deletes many.
        .with_config(Key::DisableBulkDelete, "true")
        .with_retry(no_retries())
        .with_http_connector(connector);
    let first = builder.clone().build().map_err(refused)?;
    let builder = builder.with_credentials(Steady::new(first.credentials()));
    let service = Arc::new(builder.build().map_err(refused)?);
    let made = made.lock().take();
    let locker = made.map(|client| Locker {
        service: Arc::clone(&service),
        client,
        region,
    });
    Ok(Setup {
        service,
        flavor: Flavor::S3,
        locker,
        endpoint,
    })
}

/// Returns the region that requests are signed for.
fn region_of(builder: &AmazonS3Builder) -> String {
    use AmazonS3ConfigKey as Key;
    [Key::Region, Key::DefaultRegion]
        .iter()
        .find_map(|key| builder.get_config_value(key))
        .filter(|region| !region.is_empty())
        .unwrap_or_else(|| REGION_DEFAULT.to_owned())
}

/// Returns whether the environment and the settings name credentials, or say that none are wanted.
fn has_credentials(builder: &AmazonS3Builder) -> bool {
    use AmazonS3ConfigKey as Key;
    let sources = [
        Key::AccessKeyId,
        Key::SecretAccessKey,
        Key::WebIdentityTokenFile,
        Key::ContainerCredentialsRelativeUri,
        Key::ContainerCredentialsFullUri,
    ];
    let value = |key: &Key| builder.get_config_value(key);
    let is_set = |key: &Key| value(key).is_some_and(|value| !value.is_empty());
    sources.iter().any(is_set) || value(&Key::SkipSignature).is_some_and(|value| value == "true")
}

/// Adds the keys of a profile, and its region if no other is known. Without a profile,
/// `object_store` asks the cloud machine that it runs on.
fn with_profile(mut builder: AmazonS3Builder) -> Result<AmazonS3Builder, StoreError> {
    use AmazonS3ConfigKey as Key;
    let Some(profiles) = Profiles::of(|name| std::env::var(name).ok()) else {
        return Ok(builder);
    };
    let Some(profile) = profiles.load().map_err(invalid)? else {
        return Ok(builder);
    };
    let regions = [Key::Region, Key::DefaultRegion];
    let known = regions.iter().any(|key| {
        let region = builder.get_config_value(key);
        region.is_some_and(|region| !region.is_empty())
    });
    if let Some(region) = profile.region.filter(|_| !known) {
        builder = builder.with_region(region);
    }
    Ok(builder.with_credentials(profile.keys))
}

/// Sets the address of a server other than Amazon's. Requests name the bucket in the path, unless
/// the environment wants it in the host name.
fn at_endpoint(
    builder: AmazonS3Builder,
    bucket: &str,
    endpoint: &str,
) -> Result<AmazonS3Builder, StoreError> {
    use AmazonS3ConfigKey as Key;
    check_endpoint(endpoint)?;
    let wants_host = builder
        .get_config_value(&Key::VirtualHostedStyleRequest)
        .is_some_and(|value| {
            matches!(
                value.to_ascii_lowercase().as_str(),
                "true" | "1" | "yes" | "on"
            )
        });
    let Some((scheme, rest)) = endpoint.split_once("://").filter(|_| wants_host) else {
        return Ok(builder);
    };
    let rest = rest.trim_end_matches('/');
    let endpoint = match rest.starts_with(&format!("{bucket}.")) {
        true => format!("{scheme}://{rest}"),
        false => format!("{scheme}://{bucket}.{rest}"),
    };
    Ok(builder
        .with_config(Key::S3Endpoint, &endpoint)
        .with_endpoint(endpoint))
}

/// Sets up requests to Amazon: the bucket stands in the host name, unless it has a dot, which
/// Amazon's certificates do not cover. If no region is known, Amazon is asked for it.
async fn at_amazon(
    builder: AmazonS3Builder,
    bucket: &str,
    connector: &Connector,
) -> Result<AmazonS3Builder, StoreError> {
    let mut builder = builder.with_virtual_hosted_style_request(!bucket.contains('.'));
    let known = builder
        .get_config_value(&AmazonS3ConfigKey::Region)
        .or_else(|| builder.get_config_value(&AmazonS3ConfigKey::DefaultRegion));
    if known.is_none_or(|region| region.is_empty()) {
        match region_of_bucket(bucket, connector).await {
            Ok(region) => builder = builder.with_region(region),
            // The first request reports more clearly what is wrong.
            Err(error) => tracing::debug!(bucket, %error, "the bucket's region is not known"),
        }
    }
    Ok(builder)
}

pub(super) fn gcs(
    bucket: &str,
    options: &StoreOptions,
    contact: &Arc<Contact>,
) -> Result<Setup, StoreError> {
    use GoogleConfigKey as Key;
    let mut builder = match options.use_environment {
        true => GoogleCloudStorageBuilder::from_env(),
        false => GoogleCloudStorageBuilder::new(),
    };
    for (key, value) in settings::<Key>(options, &["google_"])? {
        builder = builder.with_config(key, value);
    }
    if let Some(endpoint) = &options.endpoint {
        builder = builder.with_base_url(endpoint);
    }
    let endpoint = builder.get_config_value(&Key::BaseUrl);
    if let Some(endpoint) = &endpoint {
        check_endpoint(endpoint)?;
        if is_plain_http(endpoint) {
            builder = builder.with_config(Key::Client(ClientConfigKey::AllowHttp), "true");
        }
    }
    let builder = builder
        .with_bucket_name(bucket)
        .with_retry(no_retries())
        .with_http_connector(connector(options, contact));
    let first = builder.clone().build().map_err(refused)?;
    let builder = builder.with_credentials(Steady::new(first.credentials()));
    Ok(Setup {
        service: Arc::new(builder.build().map_err(refused)?),
        flavor: Flavor::Gcs,
        locker: None,
        endpoint,
    })
}

pub(super) fn azure(
    container: &str,
    options: &StoreOptions,
    contact: &Arc<Contact>,
) -> Result<Setup, StoreError> {
    use AzureConfigKey as Key;
    let mut builder = match options.use_environment {
        true => MicrosoftAzureBuilder::from_env(),
        false => MicrosoftAzureBuilder::new(),
    };
    for (key, value) in settings::<Key>(options, &["azure_", "azurite_"])? {
        builder = builder.with_config(key, value);
    }
    if let Some(endpoint) = &options.endpoint {
        builder = builder.with_endpoint(endpoint.clone());
    }
    let endpoint = builder.get_config_value(&Key::Endpoint);
    if let Some(endpoint) = &endpoint {
        check_endpoint(endpoint)?;
        if is_plain_http(endpoint) {
            builder = builder.with_allow_http(true);
        }
    }
    let builder = builder
        .with_container_name(container)
        .with_retry(no_retries())
        .with_http_connector(connector(options, contact));
    let first = builder.clone().build().map_err(refused)?;
    let builder = builder.with_credentials(Steady::new(first.credentials()));
    Ok(Setup {
        service: Arc::new(builder.build().map_err(refused)?),
        flavor: Flavor::Azure,
        locker: None,
        endpoint,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_leaves_the_machine_in_the_clear_is_not_guarded() {
        for guarded in [
            "https://s3.objects.test",
            "http://localhost:9000",
            "http://LOCALHOST",
            "http://127.0.0.1:9000",
            "http://127.1.2.3",
            "http://[::1]:9000",
        ] {
            assert!(is_guarded(guarded), "{guarded}");
        }
        for open in [
            "http://s3.objects.test",
            "HTTP://s3.objects.test",
            "http://localhost.objects.test",
            "http://127.0.0.1.objects.test",
            "http://user@127.0.0.2@objects.test",
            "http://10.0.0.1:9000",
            "http://0.0.0.0:9000",
            "http://[::]:9000",
            "http://[fe80::1]",
        ] {
            assert!(!is_guarded(open), "{open}");
        }
    }
}
