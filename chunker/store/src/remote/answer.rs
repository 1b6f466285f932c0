//! The meaning of a remote store's answer.
//!
//! Owns the one table from HTTP statuses and the services' error codes to [`StoreErrorKind`]s, with
//! words for people. Does no I/O.

use std::fmt;
use std::time::Duration;

use tokio::time::Instant;

use crate::{Operation, StoreErrorKind};

/// Why a request had no usable answer.
#[derive(Clone, Debug)]
pub(super) enum Fault {
    /// The server answered with an error.
    Answer(Answer),
    /// There was no answer, or only a part of it.
    Broken(Broken),
    /// The server answered with success, but not to the request.
    Senseless(Senseless),
}

/// A success that does not fit the request.
#[derive(Clone, Debug)]
pub(super) struct Senseless {
    /// The server's host, with its port if it is not the default.
    pub host: String,
    /// The fault of the answer.
    pub reason: &'static str,
}

/// An error answer.
#[derive(Clone, Debug, Default)]
pub(super) struct Answer {
    /// The server's host, with its port if it is not the default.
    pub host: String,
    /// The HTTP status.
    pub status: u16,
    /// The service's error code.
    pub code: Option<String>,
    /// The service's error message.
    pub message: Option<String>,
    /// The bucket's region, if the server names it and the request was for another region.
    pub region: Option<String>,
    /// The address that a redirect names.
    pub location: Option<String>,
    /// How long the server asks to be left alone.
    pub retry_after: Option<Duration>,
}

/// What the document of an error answer says.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Said {
    /// The service's error code.
    pub code: Option<String>,
    /// The service's error message.
    pub message: Option<String>,
    /// The bucket's region.
    pub region: Option<String>,
}

impl Said {
    /// The longest text without elements that counts as a message, in bytes.
    pub const TEXT_BYTES_MAX: usize = 200;

    /// Reads a document, which is XML, JSON or plain text. Accepts any text.
    pub fn in_document(document: &str) -> Self {
        let owned = |name| element(document, name).map(str::to_owned);
        let text = document.trim();
        let is_text =
            !text.is_empty() && !text.starts_with('<') && text.len() <= Self::TEXT_BYTES_MAX;
        Self {
            code: owned("Code"),
            message: owned("Message").or(is_text.then(|| text.to_owned())),
            region: owned("Region"),
        }
    }
}

/// A request without a complete answer.
#[derive(Clone, Debug)]
pub(super) struct Broken {
    /// The server's host, with its port if it is not the default.
    pub host: String,
    /// Whether the server may have received the whole request. Until then it cannot have applied
    /// the request.
    pub sent: bool,
    /// Whether a connection was made.
    pub connected: bool,
    /// When bytes of the body last moved, if they moved for a while.
    pub moved: Option<Instant>,
    /// The reason, in words for people.
    pub reason: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Answer(answer) => write!(formatter, "{answer}"),
            Fault::Broken(broken) => write!(formatter, "{}: {}", broken.host, broken.reason),
            Fault::Senseless(Senseless { host, reason }) => write!(formatter, "{host} {reason}"),
        }
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} answered {}", self.host, self.status)?;
        if let Some(code) = &self.code {
            write!(formatter, " {code}")?;
        }
        match &self.message {
            Some(message) => write!(formatter, " ({message})"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Fault {}

/// The meaning of a fault for an operation: the kind and the message.
pub(super) type Meaning = (StoreErrorKind, String);

/// Returns the meaning of a fault of the store itself.
pub(super) fn meaning(operation: Operation, fault: &Fault) -> Meaning {
    match fault {
        Fault::Answer(answer) => meaning_of_answer(operation, answer),
        Fault::Broken(broken) => meaning_of_silence(operation, broken),
        Fault::Senseless(_) => (StoreErrorKind::Invalid, fault.to_string()),
    }
}

fn meaning_of_silence(operation: Operation, broken: &Broken) -> Meaning {
    let Broken {
        host, sent, reason, ..
    } = broken;
    if reason.contains("certificate") {
        return (
            StoreErrorKind::Other,
            format!("{host} cannot prove who it is: {reason}"),
        );
    }
    let kind = match operation.is_write() && *sent {
        true => StoreErrorKind::OutcomeUnknown,
        false => StoreErrorKind::Unreachable,
    };
    (kind, format!("{host} does not answer: {reason}"))
}

fn meaning_of_answer(operation: Operation, answer: &Answer) -> Meaning {
    let code = answer.code.as_deref().unwrap_or("");
    if let Some(region) = &answer.region
        && is_about_region(answer.status, code)
    {
        return (
            StoreErrorKind::Invalid,
            format!("the bucket is in the region {region}: set AWS_REGION, or -o region={region}"),
        );
    }
    let kind = match kind_of_code(operation, code) {
        Some(kind) => kind,
        None => kind_of_status(operation, answer.status),
    };
    (kind, words(kind, operation, code, answer))
}

/// Returns whether an answer says that the bucket is in another region. Servers name the bucket's
/// region in other answers too, for example to an expired token.
fn is_about_region(status: u16, code: &str) -> bool {
    match code {
        "PermanentRedirect"
        | "TemporaryRedirect"
        | "AuthorizationHeaderMalformed"
        | "IllegalLocationConstraintException"
        | "InvalidRegionName" => true,
        // The answer to a request for an object's size has no document.
        "" => matches!(status, 301 | 307 | 400),
        _ => false,
    }
}

/// Returns the meaning of an error code of S3, Google Cloud Storage (its XML interface), Azure Blob
/// Storage or MinIO.
fn kind_of_code(operation: Operation, code: &str) -> Option<StoreErrorKind> {
    use StoreErrorKind as Kind;
    Some(match code {
        "NoSuchBucket" | "ContainerNotFound" | "ContainerBeingDeleted" | "ContainerDisabled" => {
            Kind::NoBucket
        }
        "NoSuchKey" | "BlobNotFound" => match operation {
            // The object that was to be replaced is absent.
            Operation::Replace => Kind::Conflict,
            _ => Kind::NotFound,
        },
        "BlobAlreadyExists" => Kind::AlreadyExists,
        // Two conditional writes collided, and this one was not applied:
        // https://docs.aws.amazon.com/AmazonS3/latest/userguide/conditional-writes.html
        "ConditionalRequestConflict" | "OperationAborted" => Kind::Throttled,
        "SlowDown"
        | "ServerBusy"
        | "TooManyRequests"
        | "RequestLimitExceeded"
        | "Throttling"
        | "ThrottlingException"
        | "BandwidthLimitExceeded"
        | "rateLimitExceeded"
        | "TooManyRequestsException"
        | "SlowDownRead"
        | "SlowDownWrite" => Kind::Throttled,
        // The body did not arrive, or arrived damaged. Nothing was stored.
        "RequestTimeout"
        | "IncompleteBody"
        | "BadDigest"
        | "XAmzContentSHA256Mismatch"
        | "Md5Mismatch"
        | "Crc64Mismatch" => Kind::Unreachable,
        "XMinioStorageFull"
        | "XMinioAdminBucketQuotaExceeded"
        | "QuotaExceeded"
        | "InsufficientStorage"
        | "StorageFull"
        | "AccountQuotaExceeded" => Kind::NoSpace,
        "AccessDenied"
        | "AllAccessDisabled"
        | "AccountProblem"
        | "InvalidAccessKeyId"
        | "SignatureDoesNotMatch"
        | "InvalidToken"
        | "ExpiredToken"
        | "TokenRefreshRequired"
        | "RequestTimeTooSkewed"
        | "AuthenticationFailed"
        | "AuthorizationFailure"
        | "AuthorizationPermissionMismatch"
        | "AuthorizationProtocolMismatch"
        | "NoAuthenticationInformation"
        | "AccountIsDisabled"
        | "InsufficientAccountPermissions"
        | "InvalidSecurity"
        | "UserProjectMissing" => Kind::Denied,
        "InvalidRange" => Kind::OutOfRange,
        "NotImplemented" => Kind::Invalid,
        _ => return None,
    })
}

fn kind_of_status(operation: Operation, status: u16) -> StoreErrorKind {
    use StoreErrorKind as Kind;
    match (status, operation) {
        (304 | 412, Operation::PutNew) => Kind::AlreadyExists,
        (304, Operation::Get) => Kind::NotModified,
        (412 | 404, Operation::Replace) => Kind::Conflict,
        (404, Operation::PutNew | Operation::Put | Operation::List) => Kind::NoBucket,
        (404, _) => Kind::NotFound,
        (401 | 403, _) => Kind::Denied,
        (416, _) => Kind::OutOfRange,
        (507, _) => Kind::NoSpace,
        (501, _) => Kind::Invalid,
        // A redirect: this server did nothing, and bkfs does not follow. The first two statuses may
        // be permanent.
        (301 | 308, _) => Kind::Invalid,
        (302 | 303 | 307, _) => Kind::Unreachable,
        (429, _) => Kind::Throttled,
        (408, _) => Kind::Unreachable,
        // A proxy may have passed the write on before it gave up. A 409 without a code that says so
        // is no proof either. versitygw answers 409 ExistingObjectIsDirectory to a write whose
        // directory a concurrent deletion removes. A repeated write then succeeds.
        (409 | 500 | 502..=504 | 520..=599, _) if operation.is_write() => Kind::OutcomeUnknown,
        (409 | 503, _) => Kind::Throttled,
        (500 | 502 | 504 | 520..=599, _) => Kind::Unreachable,
        (400 | 405 | 411..=414, _) => Kind::Invalid,
        _ => Kind::Other,
    }
}

fn words(kind: StoreErrorKind, operation: Operation, code: &str, answer: &Answer) -> String {
    use StoreErrorKind as Kind;
    let advice = match (kind, code) {
        (Kind::Denied, "InvalidAccessKeyId" | "SignatureDoesNotMatch" | "AuthenticationFailed") => {
            "the credentials are wrong"
        }
        (Kind::Denied, "ExpiredToken" | "InvalidToken" | "TokenRefreshRequired") => {
            "the credentials have expired"
        }
        (Kind::Denied, "RequestTimeTooSkewed") => "this machine's clock is wrong",
        (Kind::Denied, _) if !operation.is_write() => {
            "no permission (without the permission to list, a store says so of absent objects too)"
        }
        (Kind::Denied, _) => "no permission",
        (Kind::NoBucket, _) => "there is no such bucket",
        (Kind::NotFound, _) => "there is no such object",
        (Kind::AlreadyExists, _) => "there is an object of that name",
        (Kind::Conflict, _) => "it has been replaced or deleted meanwhile",
        (Kind::OutOfRange, _) => "it is shorter than what was asked for",
        (Kind::NoSpace, _) => "the store is full, or its quota is used up",
        (Kind::Throttled, _) => "the store asks for patience",
        (Kind::Invalid, _) if answer.status == 501 => {
            "the store cannot do this (conditional writes are needed)"
        }
        _ if matches!(answer.status, 301..=303 | 307 | 308) => return redirected(answer),
        _ => return answer.to_string(),
    };
    format!("{advice}: {answer}")
}

fn redirected(answer: &Answer) -> String {
    let location = answer.location.as_deref().unwrap_or("another address");
    format!(
        "{answer}: it sends requests elsewhere, to {location}, and bkfs does not follow: give the \
         address that answers itself as the endpoint"
    )
}

/// Returns the meaning of a failure to get credentials. Their source is at fault, not the store.
pub(super) fn meaning_without_credentials(fault: &Fault) -> Meaning {
    let kind = match fault {
        // There is no metadata service here. If it was reached but does not answer, it exists.
        Fault::Broken(broken) if is_metadata_service(&broken.host) && !broken.connected => {
            StoreErrorKind::Denied
        }
        Fault::Broken(_) | Fault::Senseless(_) => StoreErrorKind::Unreachable,
        Fault::Answer(answer) if answer.status == 429 || answer.status >= 500 => {
            StoreErrorKind::Throttled
        }
        Fault::Answer(_) => StoreErrorKind::Denied,
    };
    let message = match kind {
        StoreErrorKind::Denied => format!(
            "there are no credentials: set them in the environment (as AWS_ACCESS_KEY_ID and \
             AWS_SECRET_ACCESS_KEY) or in the configuration file; this machine has none of its \
             own ({fault})"
        ),
        _ => format!("the credentials cannot be renewed: {fault}"),
    };
    (kind, message)
}

/// Returns whether a host is the service where cloud machines get their identity. It is not
/// reachable from other machines.
pub(super) fn is_metadata_service(host: &str) -> bool {
    host.starts_with("169.254.") || host.starts_with("metadata.google.internal")
}

/// Returns the fault of our own transport, however deep `object_store` has wrapped it.
pub(super) fn fault_in(error: &object_store::Error) -> Option<&Fault> {
    let mut next: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = next {
        if let Some(fault) = error.downcast_ref::<Fault>() {
            return Some(fault);
        }
        next = error.source();
    }
    None
}

/// Returns the text of an XML element. Nested elements are not considered: error documents of all
/// services are flat.
pub(super) fn element<'a>(document: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = document.split_once(&format!("<{name}>"))?;
    let (text, _) = rest.split_once(&format!("</{name}>"))?;
    Some(text.trim()).filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use StoreErrorKind as Kind;

    use super::*;

    fn answer(status: u16, code: &str) -> Fault {
        Fault::Answer(Answer {
            host: "store.example".into(),
            status,
            code: Some(code.to_owned()).filter(|code| !code.is_empty()),
            ..Answer::default()
        })
    }

    fn silence(sent: bool) -> Fault {
        Fault::Broken(Broken {
            host: "store.example".into(),
            sent,
            connected: true,
            moved: None,
            reason: "connection reset".into(),
        })
    }

    #[test]
    fn answers_mean_what_the_caller_should_do() {
        use Operation::*;
        let cases = [
            (Get, 404, "NoSuchKey", Kind::NotFound),
            (Get, 404, "", Kind::NotFound),
            (Get, 404, "NoSuchBucket", Kind::NoBucket),
            (Head, 404, "", Kind::NotFound),
            (List, 404, "NoSuchBucket", Kind::NoBucket),
            (List, 404, "ContainerNotFound", Kind::NoBucket),
            (PutNew, 404, "", Kind::NoBucket),
            (PutNew, 412, "PreconditionFailed", Kind::AlreadyExists),
            (PutNew, 412, "", Kind::AlreadyExists),
            (PutNew, 409, "BlobAlreadyExists", Kind::AlreadyExists),
            (PutNew, 409, "ConditionalRequestConflict", Kind::Throttled),
            (PutNew, 409, "", Kind::OutcomeUnknown),
            (
                PutNew,
                409,
                "ExistingObjectIsDirectory",
                Kind::OutcomeUnknown,
            ),
            (
                Replace,
                409,
                "ExistingObjectIsDirectory",
                Kind::OutcomeUnknown,
            ),
            (Put, 409, "ExistingObjectIsDirectory", Kind::OutcomeUnknown),
            (Replace, 412, "PreconditionFailed", Kind::Conflict),
            (Replace, 412, "ConditionNotMet", Kind::Conflict),
            (Replace, 404, "NoSuchKey", Kind::Conflict),
            (Replace, 404, "BlobNotFound", Kind::Conflict),
            (Replace, 404, "NoSuchBucket", Kind::NoBucket),
            (Replace, 404, "", Kind::Conflict),
            (Replace, 409, "ConditionalRequestConflict", Kind::Throttled),
            (Replace, 500, "InternalError", Kind::OutcomeUnknown),
            (Replace, 503, "", Kind::OutcomeUnknown),
            (Replace, 503, "SlowDown", Kind::Throttled),
            (PutNew, 504, "", Kind::OutcomeUnknown),
            (Put, 502, "", Kind::OutcomeUnknown),
            (Delete, 500, "", Kind::OutcomeUnknown),
            (Get, 500, "InternalError", Kind::Unreachable),
            (Get, 503, "SlowDown", Kind::Throttled),
            (Get, 429, "", Kind::Throttled),
            (Get, 403, "AccessDenied", Kind::Denied),
            (Get, 403, "InvalidAccessKeyId", Kind::Denied),
            (Head, 403, "", Kind::Denied),
            (Get, 400, "ExpiredToken", Kind::Denied),
            (PutNew, 400, "RequestTimeout", Kind::Unreachable),
            (PutNew, 400, "EntityTooLarge", Kind::Invalid),
            (PutNew, 507, "XMinioStorageFull", Kind::NoSpace),
            (PutNew, 501, "NotImplemented", Kind::Invalid),
            (GetRange, 416, "InvalidRange", Kind::OutOfRange),
            (Get, 304, "", Kind::NotModified),
            (Get, 418, "", Kind::Other),
        ];
        for (operation, status, code, expected) in cases {
            let (kind, message) = meaning(operation, &answer(status, code));
            assert_eq!(kind, expected, "{operation:?} {status} {code}: {message}");
            assert!(message.contains(&status.to_string()), "{message}");
            assert!(message.contains("store.example"), "{message}");
        }
    }

    #[test]
    fn silence_after_a_whole_write_leaves_its_outcome_open() {
        for operation in Operation::ALL {
            let (before, _) = meaning(operation, &silence(false));
            assert_eq!(before, Kind::Unreachable, "{operation:?}");
            let (after, _) = meaning(operation, &silence(true));
            let expected = match operation.is_write() {
                true => Kind::OutcomeUnknown,
                false => Kind::Unreachable,
            };
            assert_eq!(after, expected, "{operation:?}");
        }
    }

    #[test]
    fn the_words_say_what_a_person_can_do() {
        let words = |operation, fault: &Fault| meaning(operation, fault).1;
        let wrong = words(Operation::Get, &answer(403, "SignatureDoesNotMatch"));
        assert!(wrong.starts_with("the credentials are wrong"), "{wrong}");
        let clock = words(Operation::Get, &answer(403, "RequestTimeTooSkewed"));
        assert!(clock.starts_with("this machine's clock"), "{clock}");
        let mut elsewhere = Answer {
            status: 301,
            region: Some("eu-west-1".into()),
            ..Answer::default()
        };
        let moved = words(Operation::Get, &Fault::Answer(elsewhere.clone()));
        assert!(moved.contains("-o region=eu-west-1"), "{moved}");
        elsewhere.status = 403;
        let (kind, _) = meaning(Operation::Get, &Fault::Answer(elsewhere));
        assert_eq!(kind, Kind::Denied);
    }

    #[test]
    fn missing_credentials_are_told_from_an_absent_source_of_them() {
        let at = |host: &str| {
            Fault::Broken(Broken {
                host: host.into(),
                sent: false,
                connected: false,
                moved: None,
                reason: "connection refused".into(),
            })
        };
        let (kind, words) = meaning_without_credentials(&at("169.254.169.254"));
        assert_eq!(kind, Kind::Denied);
        assert!(words.contains("AWS_ACCESS_KEY_ID"), "{words}");
        let (kind, _) = meaning_without_credentials(&at("sts.amazonaws.com"));
        assert_eq!(kind, Kind::Unreachable);
        let (kind, _) = meaning_without_credentials(&answer(400, "InvalidIdentityToken"));
        assert_eq!(kind, Kind::Denied);
        let (kind, _) = meaning_without_credentials(&answer(503, ""));
        assert_eq!(kind, Kind::Throttled);
    }

    #[test]
    fn elements_are_found_in_error_documents() {
        let document = "<?xml version=\"1.0\"?><Error><Code>NoSuchKey</Code><Message> not here \
             </Message><Key></Key></Error>";
        assert_eq!(element(document, "Code"), Some("NoSuchKey"));
        assert_eq!(element(document, "Message"), Some("not here"));
        assert_eq!(element(document, "Key"), None);
        assert_eq!(element(document, "Absent"), None);
        assert_eq!(element("<Code>cut", "Code"), None);
    }
}
