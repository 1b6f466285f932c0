//! Tests of the question for a bucket's region.

use super::server::*;
use super::*;
use crate::remote::region::named_at;
use crate::remote::setup::connector;

async fn asked(step: Step) -> (Result<String, String>, Seen) {
    let (endpoint, seen) = serve(vec![step]).await;
    let options = options(&endpoint);
    let contact = Arc::new(Contact::new(&options));
    let answer = named_at(
        &format!("{endpoint}/bucket"),
        &connector(&options, &contact),
    )
    .await;
    (answer, seen)
}

fn naming(status: &'static str, region: &str) -> Step {
    let header = ("x-amz-bucket-region", region.to_owned());
    Step::Answer(status, vec![header], String::new())
}

#[tokio::test]
async fn a_refusal_names_the_region_as_well() {
    for status in ["200 OK", "301 Moved Permanently", "403 Forbidden"] {
        let (answer, seen) = asked(naming(status, "eu-central-1")).await;
        assert_eq!(answer.as_deref(), Ok("eu-central-1"), "{status}");
        let heads = seen.heads();
        assert_eq!(heads.len(), 1, "{status}");
        assert!(
            heads[0].starts_with("HEAD /bucket HTTP/1.1"),
            "{}",
            heads[0]
        );
        assert!(!heads[0].contains("authorization"), "{}", heads[0]);
    }
}

#[tokio::test]
async fn no_region_is_made_up() {
    for (step, cause) in [
        (
            naming("404 Not Found", "eu-central-1"),
            "has no such bucket",
        ),
        (naming("200 OK", ""), "names no region"),
        (answer("403 Forbidden", ""), "names no region"),
        (Step::Forget, "127.0.0.1"),
    ] {
        let shown = format!("{step:?}");
        let (answer, _) = asked(step).await;
        let error = answer.unwrap_err();
        assert!(error.contains(cause), "{shown}: {error}");
    }
}
