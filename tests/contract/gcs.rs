//! A translator between two interfaces of Google Cloud Storage.
//!
//! `object_store` uses the XML interface. fake-gcs-server has conditional writes and paged lists
//! only in the JSON interface. Owns the translation of requests and answers, with one thread for
//! each connection. Does not own objects, generations and conditions: the server does.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};

use serde_json::Value;

/// An HTTP/1 message: the words of the first line, the headers with names in lower case, and the
/// body.
struct Message {
    first: Vec<String>,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
}

impl Message {
    fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_str())
    }
}

/// Starts the translator in front of the server at `endpoint` (`http://host:port`). Returns the
/// translator's own address. It runs until the process ends.
pub fn interpret(endpoint: &str) -> SocketAddr {
    let server = endpoint
        .trim_start_matches("http://")
        .trim_end_matches('/')
        .to_owned();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for connection in listener.incoming().flatten() {
            let server = server.clone();
            std::thread::spawn(move || converse(connection, &server));
        }
    });
    address
}

/// Answers the requests of one connection until it ends.
fn converse(mut connection: TcpStream, server: &str) {
    let mut reader = BufReader::new(connection.try_clone().unwrap());
    while let Some(request) = read_message(&mut reader, false) {
        let answer = answer(&request, server);
        if connection.write_all(&answer).is_err() {
            return;
        }
    }
}

fn answer(request: &Message, server: &str) -> Vec<u8> {
    let (method, target) = (request.first[0].as_str(), request.first[1].as_str());
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let path = path.trim_start_matches('/');
    match (method, path.split_once('/')) {
        ("PUT", Some((bucket, object))) => upload(request, server, bucket, object),
        ("GET", None) => list(server, path, query),
        _ => {
            let answer = ask(server, method, target, request);
            assemble(
                &answer.first[1],
                &answer.headers,
                &answer.body,
                method == "HEAD",
            )
        }
    }
}

fn upload(request: &Message, server: &str, bucket: &str, object: &str) -> Vec<u8> {
    let mut target = format!("/upload/storage/v1/b/{bucket}/o?uploadType=media&name={object}");
    if let Some(generation) = request.header("x-goog-if-generation-match") {
        target.push_str(&format!("&ifGenerationMatch={generation}"));
    }
    let answer = ask(server, "POST", &target, request);
    if answer.first[1] != "200" {
        return assemble(&answer.first[1], &[], &answer.body, false);
    }
    let object: Value = serde_json::from_slice(&answer.body).unwrap();
    let text = |name: &str| object[name].as_str().unwrap().to_owned();
    let headers = [
        ("etag".to_owned(), format!("\"{}\"", text("etag"))),
        ("x-goog-generation".to_owned(), text("generation")),
    ];
    assemble("200", &headers, b"", false)
}

fn list(server: &str, bucket: &str, query: &str) -> Vec<u8> {
    let mut target = format!("/storage/v1/b/{bucket}/o?");
    for pair in query.split('&') {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        match name {
            "prefix" => target.push_str(&format!("&prefix={value}")),
            "max-keys" => target.push_str(&format!("&maxResults={value}")),
            "continuation-token" => target.push_str(&format!("&pageToken={value}")),
            // `start-after` is exclusive, and `startOffset` is inclusive.
            "start-after" => target.push_str(&format!("&startOffset={value}%00")),
            _ => {}
        }
    }
    let request = Message {
        first: Vec::new(),
        headers: Vec::new(),
        body: Vec::new(),
    };
    let answer = ask(server, "GET", &target, &request);
    if answer.first[1] != "200" {
        return assemble(&answer.first[1], &[], &answer.body, false);
    }
    let page: Value = serde_json::from_slice(&answer.body).unwrap();
    let mut document = String::from("<ListBucketResult>");
    for object in page["items"].as_array().into_iter().flatten() {
        document.push_str(&format!(
            "<Contents><Key>{}</Key><Size>{}</Size><LastModified>{}</LastModified><ETag>none</ETag></Contents>",
            escape(object["name"].as_str().unwrap()),
            object["size"].as_str().unwrap(),
            object["updated"].as_str().unwrap(),
        ));
    }
    if let Some(token) = page["nextPageToken"].as_str() {
        document.push_str(&format!(
            "<NextContinuationToken>{}</NextContinuationToken>",
            escape(token)
        ));
    }
    document.push_str("</ListBucketResult>");
    assemble("200", &[], document.as_bytes(), false)
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

/// Sends a request to the server on a new connection. It uses HTTP/1.0, so that the answer is not
/// sent in chunks.
fn ask(server: &str, method: &str, target: &str, request: &Message) -> Message {
    let mut connection = TcpStream::connect(server).unwrap();
    let mut head = format!("{method} {target} HTTP/1.0\r\nHost: {server}\r\n");
    for name in ["range", "if-none-match", "content-type"] {
        if let Some(value) = request.header(name) {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
    }
    head.push_str(&format!("content-length: {}\r\n\r\n", request.body.len()));
    connection.write_all(head.as_bytes()).unwrap();
    connection.write_all(&request.body).unwrap();
    read_message(&mut BufReader::new(connection), true).unwrap()
}

/// Reads a message. The body of an answer extends to the end of the connection. The length of a
/// request's body is in its header.
fn read_message(reader: &mut impl BufRead, is_answer: bool) -> Option<Message> {
    let mut line = String::new();
    reader
        .read_line(&mut line)
        .ok()
        .filter(|&count| count > 0)?;
    let first = line.split_whitespace().map(str::to_owned).collect();
    let mut headers = Vec::new();
    loop {
        line.clear();
        reader.read_line(&mut line).ok()?;
        let Some((name, value)) = line.trim_end().split_once(':') else {
            break;
        };
        headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
    }
    let mut message = Message {
        first,
        headers,
        body: Vec::new(),
    };
    if is_answer {
        reader.read_to_end(&mut message.body).ok()?;
    } else {
        let length = message
            .header("content-length")
            .map_or(0, |text| text.parse().unwrap());
        message.body.resize(length, 0);
        reader.read_exact(&mut message.body).ok()?;
    }
    Some(message)
}

fn assemble(
    status: &str,
    headers: &[(String, String)],
    body: &[u8],
    keeps_length: bool,
) -> Vec<u8> {
    let mut head = format!("HTTP/1.1 {status} said\r\n");
    for (name, value) in headers {
        // The length of a body that HEAD does not send comes from the server.
        if (name != "content-length" || keeps_length) && name != "connection" {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
    }
    if !keeps_length {
        head.push_str(&format!("content-length: {}\r\n", body.len()));
    }
    head.push_str("\r\n");
    [head.as_bytes(), body].concat()
}
